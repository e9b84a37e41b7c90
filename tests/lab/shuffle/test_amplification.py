"""Shuffles: the published numbers, all accounts of the curve, and what is refused."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.shuffle.amplification import (
    MOST_EPSILON,
    Shuffle,
    clones,
    shuffled_cost,
    through_zero,
)
from quietbit_lab.shuffle.blanket import MOST_CROWD, Blanket
from refusals import refuses

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
# Feldman, McMillan, Talwar (2021), evaluated numerically elsewhere: delta 1e-6, rounded to two or
# three digits.
PUBLISHED = {
    (6_000, 1.0): 0.070,
    (6_000, 4.0): 0.82,
    (60_000, 2.0): 0.059,
}


def generic(local: float, crowd: int) -> Cost:
    return Shuffle(crowd, local, (clones(local),)).cost()


@pytest.mark.parametrize(("crowd", "local"), PUBLISHED)
def test_the_generic_bound_is_the_published_one(crowd, local):
    assert 0.97 <= generic(local, crowd).epsilon(1e-6) / PUBLISHED[crowd, local] <= 1.02


def pure(adjacency: Adjacency, crowd: int, near: float, far: float) -> Cost:
    """The cost of a shuffle of releases that are ``near`` zero and ``far`` from each other."""
    return shuffled_cost(adjacency, crowd, replace_one=Cost.pure(far), zero_out=Cost.pure(near))


@pytest.mark.parametrize(("near", "far"), [(1.0, 2.0), (2.5, 4.0), (2.0, 2.0)])
def test_never_above_the_generic_bound_nor_the_local_epsilon(near, far):
    for crowd, delta in itertools.product((1, 30, 3000), (1e-3, 1e-8)):
        most = min(far, generic(far, crowd).epsilon(delta))
        assert pure(REPLACE, crowd, near, far).epsilon(delta) <= most
    assert pure(ZERO, 10, near, far).epsilon(0.0) == near


def test_the_path_through_zero_is_shorter_where_zero_lies_in_the_middle():
    best = pure(REPLACE, 60_000, 2.0, 4.0).epsilon(1e-6)
    assert best < 0.75 * generic(4.0, 60_000).epsilon(1e-6)


def test_delta_and_epsilon_are_inverse():
    shuffle = Shuffle(5000, 2.0, (clones(2.0),))
    curve = shuffle.cost()
    for delta in (1e-2, 1e-6, 1e-12):
        epsilon = curve.epsilon(delta)
        assert shuffle.delta_upper(epsilon) <= delta < shuffle.delta_upper(epsilon * (1 - 1e-5))
    assert curve.epsilon(0.0) == curve.pure_epsilon() == 2.0
    assert curve.epsilon(0.5) == 0.0
    assert curve.answered_by(1e-6) == "shuffle"


def test_shuffles_compose():
    """More shuffles cost more, as a square root at first.

    One as a composition is hardly more than one by itself.
    """
    curve = generic(1.0, 20_000)
    once = curve.epsilon(1e-6)
    found = [(curve * times).epsilon(1e-6) for times in (1, 4, 16)]
    assert once <= found[0] <= 1.002 * once
    assert all(1.5 * a < b < 2.5 * a for a, b in itertools.pairwise(found))
    both = (curve + Cost.pure(0.5)).epsilon(1e-6)
    assert 0.5 < both < 0.5 + 2 * once
    assert (curve * 2 + Cost.gaussian(1e-4)).epsilon(1e-6) > found[0]
    assert 0 < curve.rdp(2.0) <= curve.rdp(8.0) <= Cost.pure(1.0).rdp(8.0)


def test_equal_shuffles_are_counted_together():
    """Priced one by one, releases of one mechanism in equal crowds are copies of one cost, not a
    mixture.
    """
    priced = [pure(REPLACE, 500, 0.4, 0.7) for _ in range(2)]
    first, again = (cost.of(REPLACE, Unit.CLIENT, Trust.SHUFFLED) for cost in priced)
    empty = Account(Target(1.2, 5e-6, REPLACE, trust=Trust.SHUFFLED), "adaptive")
    apart, together = empty.spend(first, 34).spend(again, 5), empty.spend(first, 39)
    assert apart == together
    assert apart.epsilon() <= 1.01 * (first * 39).epsilon(5e-6)


def test_approximate_releases_are_refused_with_the_reason():
    with refuses("epsilon at delta = 0", math.inf):
        shuffled_cost(REPLACE, 1000, replace_one=Cost.gaussian(0.1), zero_out=Cost.gaussian(0.025))


def test_nothing_and_everything():
    assert pure(REPLACE, 10, 0.0, 0.0) == Cost.pure(0.0)
    much = MOST_EPSILON + 1
    assert pure(ZERO, 10, much, much) == Cost.pure(much)


FAIR = Blanket(0.25, (0.5, 0.5, 0.0), (1.6, 0.4, 1.0), (0.4, 1.6, 1.0))
THREE = Blanket(0.3, (0.2, 0.2, 0.6), (3.0, 0.5, 0.5), (0.5, 3.0, 0.5))


@pytest.mark.parametrize("blanket", [FAIR, THREE])
def test_more_others_and_more_epsilon_never_raise_delta(blanket):
    last, least = 1.0, 1e-20  # what the windows leave out is below this
    for crowd in (1, 2, 10, 100, 1000, 30_000, 10**6, 10**8):
        found = [
            max(least, blanket.delta_upper(crowd, epsilon))
            for epsilon in (0.0, 0.01, 0.1, 0.5, 1.0, 1.7)
        ]
        assert found == sorted(found, reverse=True)
        assert found[2] <= last * (
            1 + 1e-3
        )  # rows stand for ranges, whose widths change with the crowd
        last = found[2]
    assert last == least


@pytest.mark.parametrize("epsilon", [0.004, 0.008, 0.012])
def test_ranges_cost_little(epsilon):
    """A crowd whose table has rows of many values, against a sum over every one of them with
    scipy's tails.
    """
    crowd, share, growth = 10**6, 0.25, math.exp(epsilon)
    up, down = 1.6 - growth * 0.4, 0.4 - growth * 1.6
    count = np.arange(245_000, 255_001)
    theta = -count * down / (up - down)
    first = np.floor(theta) + 1
    part = count * 0.5 * binom.sf(first - 2, count - 1, 0.5) - theta * binom.sf(
        first - 1, count, 0.5
    )
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
        {"share": 0.0},
        {"share": 1.1},
        {"share": math.nan},
        {"masses": (0.5, 0.4, 0.0)},
        {"masses": (0.0, 1.0, 0.0)},
        {"masses": (0.5, 0.6, -0.1)},
        {"first": (1.6, 0.4, math.nan)},
        {"second": (0.4, math.inf, 1.0)},
        {"first": (1.6, 1.7, 1.0)},
        {"slack": -1.0},
        {"slack": math.nan},
        {"error": math.nan},
        {"masses": (0.5, 0.5)},
    ],
)
def test_what_is_no_blanket_is_refused(change):
    values = {
        "share": 0.25,
        "masses": FAIR.masses,
        "first": FAIR.first,
        "second": FAIR.second,
        **change,
    }
    (name,) = change
    with refuses(name):
        Blanket(**values)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        *(("epsilon of one release", lambda bad=bad: clones(bad)) for bad in (0.0, math.nan, 31.0)),
        ("epsilon of one release", lambda: through_zero(math.inf, ZERO)),
        *(
            ("crowd", lambda bad=bad: pure(REPLACE, bad, 1.0, 1.0))
            for bad in (0, 1.5, math.nan, 10**10)
        ),
        *(
            ("crowd", lambda bad=bad: FAIR.delta_upper(bad, 0.1))
            for bad in (0, 1.5, MOST_CROWD + 1)
        ),
        *(("epsilon", lambda bad=bad: FAIR.delta_upper(5, bad)) for bad in (-0.1, math.nan)),
    ],
)
def test_what_is_no_request_is_refused(name, call):
    with refuses(name):
        call()
