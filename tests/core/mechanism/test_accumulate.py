"""Sums of bodies: exact, in any order, and bounded in what one payload can do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from core.laws import test_mechanisms as laws
from core.mechanism.makers import MECHANISMS
from path import body
from quietbit.errors import InvalidPayload
from quietbit.kernel.select import select
from quietbit.mechanism import accumulate as module
from quietbit.mechanism import additive
from quietbit.mechanism.accumulate import FixedPoint
from quietbit_lab.baseline.noise import Laplace
from refusals import refuses

KERNEL = select("cpu")


def test_a_float_beyond_the_noise_is_refused() -> None:
    """A client cannot move the mean further than an honest one could."""
    for mechanism in (MECHANISMS["gaussian"], MECHANISMS["laplace"]):
        values = np.zeros(mechanism.layout.count, dtype=np.float32)
        values[-1] = 1e6
        sums = mechanism.accumulator(KERNEL, 100)
        with pytest.raises(InvalidPayload, match="floats of the payload"):
            sums.check(body(mechanism, values.view(np.uint32)))


def test_no_honest_float_is_refused() -> None:
    """The largest noise that a word can make is within the reach."""
    smallest_tail = 2.0**-64
    assert abs(ndtri(smallest_tail / 2)) < additive.Gaussian.REACH
    assert abs(np.log(smallest_tail)) < Laplace.REACH


def test_floats_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    laws.test_the_mean_is_the_mean_of_decoded_codes(MECHANISMS["gaussian"], 3)


@given(st.lists(st.floats(-900, 900), min_size=1, max_size=8), st.integers(1, 2**40))
def test_sums_fit_and_rounding_is_as_stated(values: list[float], most: int) -> None:
    alphabet = np.array(values)
    if not np.abs(alphabet).max() > 1e-6:
        return
    fixed = FixedPoint.of(alphabet, most)
    assert most * int(np.abs(fixed.table).max()) <= 2**62
    for value, entry in zip(values, fixed.table.tolist(), strict=True):
        unit = Fraction(1, 2**fixed.shift)
        assert abs(Fraction(value) - entry * unit) <= unit / 2


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("largest noisy value", lambda: module.of_floats(1e39, 4, 10)),
        ("largest alphabet value", lambda: FixedPoint.of(np.array([np.nan, 1.0]), 10)),
        ("largest alphabet value", lambda: FixedPoint.of(np.zeros(2), 10)),
        ("most payloads", lambda: FixedPoint.of(np.ones(2), 0)),
        ("payloads", lambda: FixedPoint.of(np.ones(2), 10).mean(np.zeros(3, np.int64), 11)),
    ],
)
def test_what_integers_cannot_hold_is_refused(name: str, act: Any) -> None:
    with refuses(name):
        act()
