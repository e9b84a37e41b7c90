from importlib.metadata import version

import pytest

from cli.kit import shell
from cli.test_self_test import Broken, last_bit, one_kernel
from quietbit.cli import doctor as module
from quietbit.kernel.reference import ReferenceKernel


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One kernel; the auditor's tests look at all of them."""
    one_kernel(monkeypatch)


def test_it_prints_what_is_here_and_passes(capsys):
    result = shell(capsys, "doctor")
    assert result.code == 0
    for word in (
        "quietbit",
        "numpy",
        version("numpy"),
        "kernel cpu",
        "the default",
        "GPU",
        "solved designs",
    ):
        assert word in result.out
    assert result.out.count("PASS") == 3
    assert "FAIL" not in result.out
    assert "Self-test: payload" in result.err  # progress, where there is no terminal for a bar


def test_json_says_the_same_to_machines(capsys):
    result = shell(capsys, "doctor", "--json")
    assert (result.code, result.err) == (0, "")
    facts = result.json
    assert facts["passed"] is True
    assert facts["versions"]["quietbit"] == version("quietbit")
    assert facts["default_kernel"] in facts["kernels"]
    assert facts["kernels"][facts["default_kernel"]] == {"available": True, "reason": None}
    assert set(facts["folders"]) == {"designs", "features"}
    assert all(check["passed"] and check["detail"] for check in facts["checks"])
    assert set(facts["missing"]) == {
        name for name, found in facts["versions"].items() if found is None
    }


def test_a_broken_sampler_exits_1(capsys, monkeypatch):
    monkeypatch.setattr("quietbit.doctor.default_kernel", lambda: Broken(last_bit))
    result = shell(capsys, "doctor")
    assert result.code == 1
    assert "FAIL  kernels agree bit for bit" in result.out
    assert "PASS  payload" in result.out
    for_machines = shell(capsys, "doctor --json")
    assert for_machines.code == 1
    assert for_machines.json["passed"] is False


def test_what_is_missing_is_said_with_the_extra_that_brings_it(capsys, monkeypatch):
    def absent(name):
        raise module.PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", absent)
    monkeypatch.setattr("quietbit.doctor.default_kernel", ReferenceKernel)
    result = shell(capsys, "doctor")
    assert result.code == 0
    for extra in ("torch", "gpu", "accounting", "flower"):
        assert f"not installed: pip install '.[{extra}]' in a checkout of quietbit" in result.out
    assert "not installed: pip install ./packages/lab in a checkout of quietbit" in result.out
