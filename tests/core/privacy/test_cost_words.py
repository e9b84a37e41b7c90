"""Costs carry their words: what may be added, what follows from what, what is refused."""

import itertools
import math

import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Trust, Unit
from refusals import refuses

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ONCE = Cost.gaussian(0.02).of(REPLACE, Unit.CLIENT, Trust.LOCAL)


def test_words_change_no_number():
    assert ONCE.rdp(3.0) == Cost.gaussian(0.02).rdp(3.0)
    assert ONCE.epsilon(1e-5) == Cost.gaussian(0.02).epsilon(1e-5)
    assert math.isinf(ONCE.pure_epsilon())
    assert ONCE.losses() == Cost.gaussian(0.02).losses()
    assert Cost.linear(0.1).of(ZERO, Unit.CLIENT, Trust.LOCAL).losses() is None
    guarantee = (ONCE * 5).guarantee(1e-5)
    assert guarantee.epsilon_upper == (Cost.gaussian(0.02) * 5).epsilon(1e-5)
    assert (guarantee.unit, guarantee.adjacency, guarantee.trust) == (
        Unit.CLIENT,
        REPLACE,
        Trust.LOCAL,
    )


def test_equal_words_compose():
    pair = Cost.from_masses([0.6, 0.4], [0.4, 0.6]).of(REPLACE, Unit.CLIENT, Trust.LOCAL)
    both = ONCE + (pair * 3)
    assert both.bare() == ONCE.bare() + pair.bare() * 3
    assert both.adjacency is REPLACE


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("adjacency", Cost.gaussian(0.02).of(ZERO, Unit.CLIENT, Trust.LOCAL)),
        ("unit", Cost.gaussian(0.02).of(REPLACE, Unit.SAMPLE, Trust.LOCAL, samples=4)),
        ("trust", Cost.gaussian(0.02).of(REPLACE, Unit.CLIENT, Trust.SECURE_AGGREGATION)),
    ],
)
def test_mixtures_are_refused_both_ways(name, other):
    for left, right in ((ONCE, other), (other, ONCE)):
        with refuses(name, getattr(right, name).value):
            (left + right)


def test_bare_costs_do_not_slip_in():
    for left, right in ((ONCE, Cost.gaussian(0.02)), (Cost.gaussian(0.02), ONCE)):
        with refuses("unit"):
            left + right
    assert Cost() + ONCE == ONCE + Cost() == ONCE  # nothing has no words
    for request in (
        lambda: Cost.gaussian(0.02).guarantee(1e-5),
        lambda: Cost.gaussian(0.02).under(trust=Trust.LOCAL),
    ):
        with refuses("adjacency", None):
            request()
    with refuses("adjacency", REPLACE):
        ONCE.of(ZERO, Unit.CLIENT, Trust.LOCAL)


def test_what_follows_from_what():
    implied = {
        (Trust.LOCAL, Trust.LOCAL),
        (Trust.LOCAL, Trust.SECURE_AGGREGATION),
        (Trust.LOCAL, Trust.CENTRAL),
        (Trust.SECURE_AGGREGATION, Trust.SECURE_AGGREGATION),
        (Trust.SECURE_AGGREGATION, Trust.CENTRAL),
        (Trust.CENTRAL, Trust.CENTRAL),
        (Trust.LOCAL, Trust.SHUFFLED),
        (Trust.SHUFFLED, Trust.SHUFFLED),
    }
    for near, far, held, asked in itertools.product(Adjacency, Adjacency, Trust, Trust):
        release = Cost.pure(0.5).of(near, Unit.CLIENT, held)
        if (near is far or near is REPLACE) and (held, asked) in implied:
            converted = release.under(adjacency=far, trust=asked)
            assert (converted.adjacency, converted.trust, converted.bare()) == (
                far,
                asked,
                release.bare(),
            )
        else:
            with pytest.raises(InvalidParameter):
                release.under(adjacency=far, trust=asked)
    assert ONCE.under() == ONCE


def test_a_sample_level_names_its_samples():
    with refuses("samples", None):
        Cost.gaussian(0.02).of(ZERO, Unit.SAMPLE, Trust.LOCAL)
    with refuses("samples", 3):
        Cost.gaussian(0.02).of(ZERO, Unit.CLIENT, Trust.LOCAL, samples=3)
    with refuses("samples", 0):
        Cost.gaussian(0.02).of(ZERO, Unit.SAMPLE, Trust.LOCAL, samples=0)


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("adjacency", ("zero-out", Unit.CLIENT, Trust.LOCAL)),
        ("unit", (ZERO, "client", Trust.LOCAL)),
        ("trust", (ZERO, Unit.CLIENT, "local")),
    ],
)
def test_refuses_terms_that_are_none(name, terms):
    with refuses(name):
        Cost.pure(0.5).of(*terms)
