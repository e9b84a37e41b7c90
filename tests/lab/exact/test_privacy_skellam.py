"""The Skellam bound against divergences summed exactly, term by term."""

import math

import mpmath as mp
import pytest

from quietbit.errors import InvalidParameter
from quietbit_lab.baseline.skellam_cost import skellam_cost, skellam_rdp_upper
from refusals import refuses

ORDERS = (1.05, 1.5, 2.0, 2.5, 3.0, 6.4, 17.0)


def pmf(variance: float, reach: int) -> dict[int, mp.mpf]:
    """P(k) = e^-v I_k(v): the difference of two Poissons of mean v/2."""
    with mp.workdps(40):
        half = [
            mp.exp(-mp.mpf(variance)) * mp.besseli(k, mp.mpf(variance)) for k in range(reach + 1)
        ]
        return {k: half[abs(k)] for k in range(-reach, reach + 1)}


def divergence(law: dict[int, mp.mpf], shift: int, alpha: float) -> mp.mpf:
    """D_alpha(X + shift || X), truncated where the terms have died out."""
    with mp.workdps(40):
        a = mp.mpf(alpha)
        inside = [k for k in law if k - shift in law]
        moment = mp.fsum(mp.power(law[k - shift], a) * mp.power(law[k], 1 - a) for k in inside)
        return mp.log(moment) / (a - 1)


@pytest.mark.parametrize("variance", [4.0, 25.0, 100.0])
def test_bound_dominates_exact_divergences(variance):
    law = pmf(variance, 160)
    assert float(mp.fsum(law.values())) == pytest.approx(1, abs=1e-12)
    assert float(mp.fsum(k * k * p for k, p in law.items())) == pytest.approx(variance, rel=1e-9)
    for shift in (1, 2, 5):
        for alpha in ORDERS:
            exact = float(divergence(law, shift, alpha))
            bound = skellam_rdp_upper(alpha, shift, shift, variance)
            assert exact <= bound
            if variance == 100 and alpha in (2, 3, 17):  # much noise: the bound is worth having
                assert bound <= exact * 1.2


def test_half_the_variance_is_caught():
    """The exact divergence of noise with half the variance exceeds the bound.

    The test above can fail.
    """
    law = pmf(12.5, 160)
    assert float(divergence(law, 5, 3.0)) > skellam_rdp_upper(3.0, 5, 5, 25.0)


@pytest.mark.parametrize(
    "bad", [(0.0, 1.0, 1.0), (1.0, 2.0, 1.0), (2.0, 1.0, 0.0), (math.nan, 1.0, 1.0)]
)
def test_distances_and_variances_without_a_meaning_are_refused(bad):
    with pytest.raises(InvalidParameter):
        skellam_cost(*bad)


@pytest.mark.parametrize("bad", [1.0, math.nan, math.inf])
def test_orders_without_a_meaning_are_refused(bad):
    with refuses("alpha"):
        skellam_rdp_upper(bad, 2.0, 1.0, 1.0)
