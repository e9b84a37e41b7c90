"""Blankets: what is refused, how the bound moves, and that large crowds are no different from small ones."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from quietbit.errors import InvalidParameter
from quietbit.privacy.blanket import MOST_CROWD, Blanket

FAIR = Blanket(0.25, (0.5, 0.5, 0.0), (1.6, 0.4, 1.0), (0.4, 1.6, 1.0))
THREE = Blanket(0.3, (0.2, 0.2, 0.6), (3.0, 0.5, 0.5), (0.5, 3.0, 0.5))


@pytest.mark.parametrize("blanket", [FAIR, THREE])
def test_more_others_and_more_epsilon_never_raise_delta(blanket):
    last, least = 1.0, 1e-20  # what the windows leave out is below this
    for crowd in (1, 2, 10, 100, 1000, 30_000, 10**6, 10**8):
        found = [max(least, blanket.delta_upper(crowd, epsilon)) for epsilon in (0.0, 0.01, 0.1, 0.5, 1.0, 1.7)]
        assert found == sorted(found, reverse=True)
        assert found[2] <= last * (1 + 1e-3)  # rows stand for ranges, whose widths change with the crowd
        last = found[2]
    assert last == least


def test_a_larger_blanket_hides_more():
    deltas = [
        Blanket(share, FAIR.masses, FAIR.first, FAIR.second).delta_upper(500, 0.3) for share in (0.01, 0.1, 0.5, 1.0)
    ]
    assert deltas == sorted(deltas, reverse=True)


def test_alone_a_release_has_its_own_price():
    for epsilon in (0.0, 0.3, 1.0):
        alone = 0.5 * (1.6 - math.exp(epsilon) * 0.4)
        assert math.isclose(FAIR.delta_upper(1, epsilon), alone, rel_tol=1e-8)
    assert FAIR.delta_upper(1, math.log(4) + 1e-9) == 0.0


@pytest.mark.parametrize("epsilon", [0.004, 0.008, 0.012])
def test_ranges_cost_little(epsilon):
    """A crowd whose table has rows of many values, against a sum over every one of them with scipy's tails."""
    crowd, share, growth = 10**6, 0.25, math.exp(epsilon)
    up, down = 1.6 - growth * 0.4, 0.4 - growth * 1.6
    count = np.arange(245_000, 255_001)
    theta = -count * down / (up - down)
    first = np.floor(theta) + 1
    part = count * 0.5 * binom.sf(first - 2, count - 1, 0.5) - theta * binom.sf(first - 1, count, 0.5)
    exact = float(binom.pmf(count, crowd, share) @ part) * (up - down) / (crowd * share)
    assert exact * (1 - 1e-6) <= FAIR.delta_upper(crowd, epsilon) <= exact * 1.01


def test_slack_and_error_are_paid():
    slack, error = 1e-3, 1e-9
    worse = Blanket(0.25, FAIR.masses, FAIR.first, FAIR.second, slack, error)
    plain = FAIR.delta_upper(1000, 0.2 - 2 * slack)
    assert worse.delta_upper(1000, 0.2) >= math.exp(slack) * plain + (2 + math.exp(0.2)) * error
    assert worse.delta_upper(1000, 0.0) >= FAIR.delta_upper(1000, 0.0) + 2 * slack
    assert worse.delta_upper(1000, 5.0) >= error


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0.0}, {"share": 1.1}, {"share": math.nan}, {"masses": (0.5, 0.4, 0.0)}, {"masses": (0.0, 1.0, 0.0)},
        {"masses": (0.5, 0.6, -0.1)}, {"first": (1.6, 0.4, math.nan)}, {"second": (0.4, math.inf, 1.0)},
        {"first": (1.6, 1.7, 1.0)}, {"slack": -1.0}, {"slack": math.nan}, {"error": math.nan}, {"masses": (0.5, 0.5)},
    ],
)  # fmt: skip
def test_what_is_no_blanket_is_refused(change):
    values = {"share": 0.25, "masses": FAIR.masses, "first": FAIR.first, "second": FAIR.second, **change}
    with pytest.raises(InvalidParameter):
        Blanket(**values)


@pytest.mark.parametrize(("crowd", "epsilon"), [(0, 0.1), (1.5, 0.1), (MOST_CROWD + 1, 0.1), (5, -0.1), (5, math.nan)])
def test_what_is_no_question_is_refused(crowd, epsilon):
    with pytest.raises(InvalidParameter):
        FAIR.delta_upper(crowd, epsilon)
