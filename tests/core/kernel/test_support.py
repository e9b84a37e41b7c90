"""Choosing kernels by name, what is missing for each, and sizes that all share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import quietbit
from quietbit.errors import InvalidParameter
from quietbit.kernel import support
from quietbit.kernel.base import packed_size
from quietbit.kernel.select import GPU_KERNELS, KERNELS, default_kernel, select
from refusals import refuses


def test_sizes():
    assert [packed_size(1, d) for d in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert packed_size(16, 10**9) == 2 * 10**9
    for bits, dimension in ((0, 1), (17, 1), (1, -1), (1, 2**60), (True, 3)):
        with pytest.raises(InvalidParameter):
            packed_size(bits, dimension)


def test_kernels_are_chosen_by_name():
    for name in KERNELS:
        assert select(name).name == name
    assert default_kernel(threads=2).name == "cpu"


@pytest.mark.parametrize(
    ("name", "kernel", "threads"),
    [
        ("kernel", "gpu", 1),
        ("kernel", "", 1),
        ("kernel", None, 1),
        ("threads of the reference kernel", "reference", 2),
        *(("threads", "cpu", threads) for threads in (0, -1, 1.5, True, "2")),
    ],
)
def test_unknown_names_and_threads_are_refused(name, kernel, threads):
    with refuses(name):
        select(kernel, threads=threads)


def test_without_a_compiler_numpy_serves_and_says_so_once(tmp_path):
    """A copy of the package without its library, and a path without a compiler."""
    package = tmp_path / "quietbit"
    shutil.copytree(
        Path(quietbit.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("_quietbit-*", "__pycache__"),
    )
    code = (
        "import sys, warnings; sys.modules['ziglang'] = None\n"
        "import quietbit; from quietbit.kernel.select import default_kernel, select\n"
        "from quietbit.errors import MissingDependency\n"
        "print(default_kernel().name, default_kernel().name)\n"
        "try:\n    select('cpu')\nexcept MissingDependency as error:\n    print('there is no C compiler' in str(error))"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("CC", None)
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert run.stdout.splitlines() == ["reference reference", "True"]
    assert run.stderr.count("SlowKernelWarning") == 1
    assert "python -m quietbit.kernel.c" in run.stderr


def test_every_kernel_is_listed_and_the_reference_always_runs():
    found = support.kernel_support()
    assert tuple(found) == KERNELS + GPU_KERNELS
    assert not found["reference"]


def test_a_missing_package_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install '.[torch]' in a checkout" in support.kernel_support()["triton"]
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "pip install '.[gpu]' in a checkout" in support.kernel_support()["triton"]


def test_gpu_support_names_the_device_or_the_reason(monkeypatch):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_properties=lambda _: SimpleNamespace(name="a GPU", total_memory=80e9),
    )
    torch = SimpleNamespace(__version__="9.9", version=SimpleNamespace(cuda="13"), cuda=cuda)
    monkeypatch.setattr(support, "find_spec", lambda name: name)
    monkeypatch.setattr(support, "require_module", lambda *_: torch)
    assert support.gpu_support() == {"name": "a GPU", "gigabytes": 80.0}
    cuda.is_available = lambda: False
    assert "sees no GPU" in support.gpu_support()["reason"]
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert ".[gpu]" in support.gpu_support()["reason"]
