"""The self-test passes here, and every way to break the library makes one of its checks fail.

False alarms: `sampled frequencies` draws secure words once, with probability below 1e-9 of failing
a correct sampler.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from quietbit import Ball, Gaussian, Norm
from quietbit.auditor import doctor as module
from quietbit.auditor.doctor import run_checks, self_test
from quietbit.design.solve import shipped
from quietbit.design.table import Design, DesignSpec
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.select import default_kernel, kernel_support
from quietbit.privacy.account import Account

NAMES = [
    "kernels agree bit for bit",
    "codes follow the formula",
    "sampled frequencies",
    "shipped designs",
    "privacy account",
    "payload",
    "mean and variance of releases",
]


class Broken:
    """A kernel that samples as the default one and then spoils some of the codes."""

    name = "broken"

    def __init__(self, spoil: Any) -> None:
        self.inner, self.spoil = default_kernel(), spoil

    def sample(self, sampler: Any, inputs: Any, rng: Any, **options: Any) -> Any:
        codes = self.inner.sample(sampler, inputs, rng, **options).copy()
        self.spoil(codes)
        return codes

    def sample_packed(self, sampler: Any, inputs: Any, rng: Any, out: Any, **options: Any) -> None:
        codes = self.sample(sampler, inputs, rng, **options)
        out[:] = np.frombuffer(ReferenceKernel().pack(codes, sampler.bits), dtype=np.uint8)


def one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mechanism is sent, one shipped design certified and one kernel asked, instead of all.

    Tests of Triton may have left its interpreter in this process, which is right and takes seconds.
    """
    monkeypatch.setattr(module, "kernel_support", dict)
    monkeypatch.setattr(
        module, "_released", lambda: (Gaussian(Ball(Norm.L2, 1.0, module.RELEASED), 1.0),)
    )
    monkeypatch.setattr(module, "catalogue", lambda: [shipped(DesignSpec(2, 1, 1.0))])


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """All is looked at in the test that all is well here, and only there."""
    if request.node.name != "test_all_is_well_here":
        one_of_each(monkeypatch)


def test_a_release_that_is_not_what_is_claimed_is_seen(monkeypatch):
    monkeypatch.setattr(Gaussian, "variance", lambda self, value: 4.0)
    assert (
        "Releases of Gaussian"
        in failed(self_test(rng=seeded_rng(1)))["mean and variance of releases"]
    )


def failed(outcomes: list[Any]) -> dict[str, str]:
    return {one.name: one.detail for one in outcomes if not one.passed}


def test_all_is_well_here(monkeypatch):
    if (
        "TRITON_INTERPRET" in os.environ
    ):  # its tests left the interpreter in this process, where it looks like a GPU
        monkeypatch.setattr(
            module, "kernel_support", lambda: {**kernel_support(), "triton": "interpreted"}
        )
    told: list[tuple[float, str]] = []
    outcomes = self_test(lambda fraction, message: told.append((fraction, message)))
    assert failed(outcomes) == {}
    assert [one.name for one in outcomes] == NAMES
    assert [message for _, message in told] == [*NAMES, "done"]
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)


def test_all_is_well_with_the_reference_kernel(monkeypatch):
    monkeypatch.setattr(module, "default_kernel", ReferenceKernel)
    assert failed(self_test(rng=seeded_rng(3))) == {}


def last_bit(codes: Any) -> None:
    codes[-1] ^= 1


def one_percent(codes: Any) -> None:
    codes[::100] = 0


def test_one_wrong_code_is_seen(monkeypatch):
    monkeypatch.setattr(module, "default_kernel", lambda: Broken(last_bit))
    outcome = failed(self_test(rng=seeded_rng(1)))
    assert "1 of 50,003 codes" in outcome["kernels agree bit for bit"]
    assert "codes follow the formula" in outcome


def test_a_sampler_that_returns_a_code_too_often_is_seen(monkeypatch):
    monkeypatch.setattr(module, "default_kernel", lambda: Broken(one_percent))
    outcome = failed(self_test(rng=secure_rng()))
    assert "do not follow the table" in outcome["sampled frequencies"]


class Stuck:
    """Words with a top bit that never changes, from a generator that is otherwise fine."""

    def draw(self, count: int) -> Any:
        block = seeded_rng(5).draw(count)
        inner = block.reader

        class Block:
            def primary(self, start: int, count: int) -> Any:
                return block.primary(start, count) & 0x7FFF

            def reader(self, start: int) -> Any:
                read = inner(start)

                def half(out: Any) -> None:
                    read(out)
                    out &= 0x7FFF

                return half

            ties, uniform64 = staticmethod(block.ties), staticmethod(block.uniform64)

        return Block()


def test_words_with_a_stuck_bit_are_seen():
    assert "do not follow the table" in failed(self_test(rng=Stuck()))["sampled frequencies"]


def design_that_promises_too_much() -> Design:
    honest = shipped(DesignSpec(2, 1, 2.0))
    return Design(DesignSpec(2, 1, 1.0), honest.probabilities, honest.alphabet)


def biased_design() -> Design:
    honest = shipped(DesignSpec(2, 1, 2.0))
    return Design(honest.spec, honest.probabilities, honest.alphabet * 1.001)


@pytest.mark.parametrize(
    ("designs", "mention"),
    [
        ([design_that_promises_too_much()], "measured epsilon"),
        ([biased_design()], "bias"),
        ([], "No design ships"),
    ],
)
def test_a_broken_design_is_seen(designs, mention, monkeypatch):
    monkeypatch.setattr(module, "catalogue", lambda: designs)
    assert mention in failed(self_test(rng=seeded_rng(1)))["shipped designs"]


def test_an_account_that_says_too_little_is_seen(monkeypatch):
    spend = Account.spend
    monkeypatch.setattr(
        Account, "spend", lambda self, cost, times=1: spend(self, cost, max(1, times - 1))
    )
    assert "closed form" in failed(self_test(rng=seeded_rng(1)))["privacy account"]


def test_an_account_that_says_too_much_is_seen(monkeypatch):
    monkeypatch.setattr(module, "PURE_ONE_BIT", module.PURE_ONE_BIT * (1 - 1e-5))
    assert "closed form" in failed(self_test(rng=seeded_rng(1)))["privacy account"]


def test_other_bytes_on_the_wire_are_seen(monkeypatch):
    monkeypatch.setattr(module, "EXAMPLE", module.EXAMPLE[:-1] + b"\x1e")
    assert "other bytes" in failed(self_test(rng=seeded_rng(1)))["payload"]


def test_a_reader_that_does_not_check_is_seen(monkeypatch):
    monkeypatch.setattr(
        "quietbit.wire.uplink.Uplink.receive", lambda self, payloads: self.mechanism.values[0]
    )
    assert "payload" in failed(self_test(rng=seeded_rng(1)))


def test_an_exception_is_a_failure_and_the_others_still_run():
    def broken() -> str:
        raise ZeroDivisionError("no")

    outcomes = run_checks({"first": broken, "second": lambda: "fine"})
    assert [(one.passed, one.detail) for one in outcomes] == [
        (False, "ZeroDivisionError: no"),
        (True, "fine"),
    ]


def test_a_missing_catalogue_is_seen(monkeypatch):
    monkeypatch.setattr(module, "shipped", lambda spec: None)
    assert len(failed(self_test(rng=seeded_rng(1)))) == 5
