import sys
from types import SimpleNamespace

import pytest

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu aes avx2\nprocessor\t: 1\nflags\t\t: fpu aes\n", True),
        ("Features\t: fp asimd aes pmull\n", True),
        ("flags\t\t: fpu vaes_not_quite\n", False),
        ("flags\t\t: aes\nflags\t\t: fpu\n", False),
        ("nothing said\n", None),
    ],
)
def test_aes_instructions_are_read_from_the_system(tmp_path, text, expected):
    facts = tmp_path / "cpuinfo"
    facts.write_text(text)
    assert support.aes_instructions(facts) is expected


def test_a_system_that_does_not_tell(tmp_path):
    assert support.aes_instructions(tmp_path / "none") is None


def test_aes_speed_is_measured(monkeypatch):
    speed = support.aes_gigabytes_per_second(0.01)
    assert speed is not None
    assert speed > 0
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    assert support.aes_gigabytes_per_second(0.01) is None


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
