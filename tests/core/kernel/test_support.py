import sys
from types import SimpleNamespace

from quietbit.kernel import support
from quietbit.kernel.select import GPU_KERNELS, KERNELS


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


def fake_torch(available: bool) -> SimpleNamespace:
    properties = SimpleNamespace(name="a GPU", total_memory=80e9)
    cuda = SimpleNamespace(
        is_available=lambda: available, get_device_properties=lambda _: properties
    )
    return SimpleNamespace(__version__="9.9", version=SimpleNamespace(cuda="13"), cuda=cuda)


def test_gpu_support_names_the_device_or_the_reason(monkeypatch):
    monkeypatch.setattr(support, "find_spec", lambda name: name)
    monkeypatch.setattr(support, "require_module", lambda *_: fake_torch(True))
    assert support.gpu_support() == {"name": "a GPU", "gigabytes": 80.0}
    monkeypatch.setattr(support, "require_module", lambda *_: fake_torch(False))
    assert "sees no GPU" in support.gpu_support()["reason"]
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert ".[gpu]" in support.gpu_support()["reason"]
