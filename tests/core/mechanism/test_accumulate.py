"""Sums of bodies: exact, in any order, and bounded in what one payload can do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from core.mechanism.makers import MECHANISMS, update
from path import body, decode, encode
from quietbit.errors import InvalidPayload, Outlier
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.select import select
from quietbit.mechanism import accumulate as module
from quietbit.mechanism import additive
from quietbit.mechanism.abilities import SharedRows
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.projected import Projected
from quietbit_lab.baseline.noise import Laplace
from refusals import refuses

KERNEL = select("cpu")
NAMES = list(MECHANISMS)


def many_codes(mechanism: Any, count: int) -> list[Any]:
    rng = seeded_rng(5)
    return [encode(mechanism, update(mechanism.ball, seed), rng) for seed in range(count)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 15, 37])
def test_the_mean_is_the_mean_of_decoded_codes(name: str, count: int) -> None:
    mechanism = MECHANISMS[name]
    codes = many_codes(mechanism, count)
    sums = mechanism.accumulator(KERNEL, 2**24)
    sums.add([body(mechanism, code) for code in codes])
    decoded = np.array(
        [np.asarray(decode(mechanism, code), dtype=np.float64).reshape(-1) for code in codes]
    )
    expected = decoded.mean(axis=0)
    found = sums.reader(count)(0, mechanism.ball.dimension)
    assert found.shape == expected.shape
    largest = sums.reach if mechanism.layout.bits == 32 else max(1.0, float(np.abs(expected).max()))
    exact = 2.0**-36 * largest
    if SharedRows.find(mechanism):
        # Spread and rotated back in single precision, so that clients who replay a round get the
        # same bits: a product and seven stages of sums (67 is padded to 128), each rounded by 2^-24
        # of a number of about this size.
        exact = 2.0**-21 * float(np.abs(decoded).max())
    assert np.abs(found - expected).max() <= exact


@pytest.mark.parametrize("name", NAMES)
def test_neither_order_nor_grouping_matters(name: str) -> None:
    mechanism = MECHANISMS[name]
    bodies = [body(mechanism, code) for code in many_codes(mechanism, 20)]
    together, apart = (mechanism.accumulator(KERNEL, 100) for _ in range(2))
    together.add(bodies)
    for found in reversed(bodies):
        apart.add([found])
    ends = 0, mechanism.ball.dimension
    found, other = together.reader(20)(*ends), apart.reader(20)(*ends)
    if isinstance(mechanism, Projected):  # sums of decoded numbers, not of codes
        assert np.allclose(found, other, rtol=0, atol=2.0**-44)
    else:
        assert np.array_equal(found, other)


def test_ranges_of_the_mean_are_parts_of_it() -> None:
    for mechanism in MECHANISMS.values():
        sums = mechanism.accumulator(KERNEL, 100)
        sums.add([body(mechanism, many_codes(mechanism, 1)[0])])
        read = sums.reader(1)
        assert np.array_equal(np.concatenate([read(0, 9), read(9, 67)]), read(0, 67))


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
    ball, pointed = Ball(Norm.L2, 4), Ball(Norm.L1, 4)
    for mechanism, noise in ((Gaussian(ball, 2.0), 2.0 * 9.2), (Laplace(pointed, 2.0), 2.0 * 44.4)):
        values = np.full(4, 1 + noise, dtype=np.float32)
        with pytest.raises(Outlier):  # all of them at once: each is in range
            mechanism.accumulator(KERNEL, 10).check(body(mechanism, values.view(np.uint32)))


def test_floats_that_32_bits_cannot_hold_are_refused_at_the_start() -> None:
    with refuses("largest noisy value"):
        module.of_floats(1e39, 4, 10)


def test_floats_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    test_the_mean_is_the_mean_of_decoded_codes("gaussian", 3)
