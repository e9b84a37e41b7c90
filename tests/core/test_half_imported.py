"""Arrays are recognised while another thread has imported only half of torch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit.arrays import is_tensor

HALF = """
import threading

begun, go_on = threading.Event(), threading.Event()
begun.set()
if not go_on.wait(60):
    raise TimeoutError


class Tensor:
    def __init__(self, values):
        self.values = values
"""
LOOK = """
import sys
import threading
import time

import numpy as np

from quietbit.arrays import dtype_name, flatten, is_tensor, restore, Structure
from quietbit.kernel.norm import Flat

importing = threading.Thread(target=__import__, args=("torch",), daemon=True)
importing.start()
ends = time.monotonic() + 60
while not hasattr(sys.modules.get("torch"), "go_on"):
    assert time.monotonic() < ends
    time.sleep(0.001)
sys.modules["torch"].begun.wait(60)
assert not hasattr(sys.modules["torch"], "Tensor")

array = np.arange(6, dtype=np.float32)
assert not is_tensor(array)
assert not is_tensor("weight")
parts, on_gpu = flatten({"weight": array}, Structure.of({"weight": array}))
assert not on_gpu
assert parts[0] is array
assert dtype_name(array) == "float32"
assert Flat.of(parts).size == 6
if "nvflare" in sys.argv:
    from quietbit.nvflare.task import kind_of
    from quietbit.federation.layout import named_arrays

    (found,) = named_arrays({"weight": array}).values()
    assert found.dtype == "float32"
    assert found.numpy() is array
    assert kind_of({"weight": array}) == "numpy"

sys.modules["torch"].go_on.set()
importing.join(60)
assert is_tensor(sys.modules["torch"].Tensor(array))
print("looked")
"""


@pytest.mark.parametrize("engine", ["none", "nvflare"])
def test_arrays_are_read_while_another_thread_is_half_way_through_the_import_of_torch(
    tmp_path, engine
):
    """Accessing `torch.Tensor` too early cost 3 of 6 NVFlare simulations their first round."""
    if engine == "nvflare":
        pytest.importorskip("nvflare", reason="needs the nvflare extra")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(HALF, encoding="utf-8")
    path = [str(tmp_path), str(Path(__file__).parents[2] / "src")]
    code = f"import sys\nsys.path[:0] = {path!r}\n{LOOK}"
    command = [sys.executable, "-c", code, engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("looked\n"), done.stderr


def test_tensors_are_known_by_the_names_of_their_classes():
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    tensor = torch.zeros(3)
    for value in (tensor, torch.nn.Parameter(tensor), tensor.as_subclass(Mine)):
        assert is_tensor(value)
    for value in (np.zeros(3), torch, torch.Tensor, "torch.Tensor", None):
        assert not is_tensor(value)
