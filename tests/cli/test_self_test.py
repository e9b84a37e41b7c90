"""The self-test passes here, and every way to break the library makes one of its checks fail."""

import os

import pytest

from quietbit import doctor as module
from quietbit.design.solve import shipped
from quietbit.design.table import Design, DesignSpec
from quietbit.doctor import run_checks, self_test
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.select import default_kernel
from quietbit.kernel.support import kernel_support

NAMES = ["kernels agree bit for bit", "certificate of a design", "payload"]


class Broken:
    """A kernel that samples as the default one and then spoils some of the codes."""

    name = "broken"

    def __init__(self, spoil):
        self.inner, self.spoil = default_kernel(), spoil

    def sample_clipped(self, *given):
        self.inner.sample_clipped(*given)
        self.spoil(given[-1])


def one_kernel(monkeypatch):
    """One kernel is asked instead of all.

    Tests of Triton may have left its interpreter in this process, which is right and takes seconds.
    """
    monkeypatch.setattr(module, "kernel_support", dict)


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """All is looked at in the test that all is well here, and only there."""
    if request.node.name != "test_all_is_well_here":
        one_kernel(monkeypatch)


def failed(outcomes):
    return {one.name: one.detail for one in outcomes if not one.passed}


def test_all_is_well_here(monkeypatch):
    if (
        "TRITON_INTERPRET" in os.environ
    ):  # its tests left the interpreter in this process, where it looks like a GPU
        monkeypatch.setattr(
            module, "kernel_support", lambda: {**kernel_support(), "triton": "interpreted"}
        )
    told = []
    outcomes = self_test(lambda fraction, message: told.append((fraction, message)))
    assert failed(outcomes) == {}
    assert [one.name for one in outcomes] == NAMES
    assert [message for _, message in told] == [*NAMES, "done"]
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)


def test_all_is_well_with_the_reference_kernel(monkeypatch):
    monkeypatch.setattr(module, "default_kernel", ReferenceKernel)
    assert failed(self_test()) == {}


def last_bit(codes):
    codes[-1] ^= 1


def test_one_wrong_code_is_seen(monkeypatch):
    monkeypatch.setattr(module, "default_kernel", lambda: Broken(last_bit))
    outcome = failed(self_test())
    assert "1 of 6,251 bytes" in outcome["kernels agree bit for bit"]


def design_that_promises_too_much():
    honest = shipped(DesignSpec(2, 1, 2.0))
    return Design(DesignSpec(2, 1, 1.0), honest.probabilities, honest.alphabet)


def biased_design():
    honest = shipped(DesignSpec(2, 1, 2.0))
    return Design(honest.spec, honest.probabilities, honest.alphabet * 1.001)


@pytest.mark.parametrize(
    ("design", "mention"),
    [(design_that_promises_too_much(), "measured epsilon"), (biased_design(), "bias")],
)
def test_a_broken_design_is_seen(design, mention, monkeypatch):
    monkeypatch.setattr(module, "shipped", lambda spec: design)
    assert mention in failed(self_test())["certificate of a design"]


def test_other_bytes_on_the_wire_are_seen(monkeypatch):
    monkeypatch.setattr(module, "EXAMPLE", module.EXAMPLE[:-1] + b"\x1e")
    assert "other bytes" in failed(self_test())["payload"]


def test_a_reader_that_does_not_check_is_seen(monkeypatch):
    monkeypatch.setattr(
        "quietbit.wire.uplink.Uplink.receive", lambda self, payloads: self.mechanism.values[0]
    )
    assert "payload" in failed(self_test())


def test_an_exception_is_a_failure_and_the_others_still_run():
    def broken():
        raise ZeroDivisionError("no")

    outcomes = run_checks({"first": broken, "second": lambda: "fine"})
    assert [(one.passed, one.detail) for one in outcomes] == [
        (False, "ZeroDivisionError: no"),
        (True, "fine"),
    ]


def test_a_missing_catalogue_is_seen(monkeypatch):
    monkeypatch.setattr(module, "shipped", lambda spec: None)
    assert len(failed(self_test())) == 3
