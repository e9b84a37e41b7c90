"""Releases carry their words: what may be added, what follows from what, what is refused."""

import itertools
import math

import pytest

from quietbit.errors import InvalidParameter
from quietbit.privacy import (
    Adjacency,
    DominatingCurve,
    GaussianCurve,
    LinearCurve,
    PrivacyCurve,
    PureCurve,
    Release,
    Trust,
    Unit,
    total,
)

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ONCE = Release(GaussianCurve(0.02), REPLACE, Unit.CLIENT, Trust.LOCAL)


def test_it_is_a_curve_by_delegation():
    assert isinstance(ONCE, PrivacyCurve)
    assert ONCE.rdp(3.0) == GaussianCurve(0.02).rdp(3.0)
    assert ONCE.epsilon_upper(1e-5) == GaussianCurve(0.02).epsilon_upper(1e-5)
    assert math.isinf(ONCE.pure_epsilon_upper())
    assert ONCE.losses() == GaussianCurve(0.02).losses()
    assert Release(LinearCurve(0.1), ZERO, Unit.CLIENT, Trust.LOCAL).losses() is None
    guarantee = ONCE.repeat(5).guarantee(1e-5)
    assert guarantee.epsilon_upper == GaussianCurve(0.02).repeat(5).epsilon_upper(1e-5)
    assert (guarantee.unit, guarantee.adjacency, guarantee.trust) == (Unit.CLIENT, REPLACE, Trust.LOCAL)


def test_equal_words_compose():
    pair = Release(DominatingCurve.from_masses([0.6, 0.4], [0.4, 0.6]), REPLACE, Unit.CLIENT, Trust.LOCAL)
    both = ONCE.compose(pair.repeat(3))
    assert both.curve == total([(ONCE.curve, 1), (pair.curve, 3)])
    assert both.adjacency is REPLACE


@pytest.mark.parametrize(
    "other",
    [
        Release(GaussianCurve(0.02), ZERO, Unit.CLIENT, Trust.LOCAL),
        Release(GaussianCurve(0.02), REPLACE, Unit.SAMPLE, Trust.LOCAL, samples=4),
        Release(GaussianCurve(0.02), REPLACE, Unit.CLIENT, Trust.SECURE_AGGREGATION),
    ],
)
def test_mixtures_are_refused_both_ways(other):
    for left, right in ((ONCE, other), (other, ONCE)):
        with pytest.raises(InvalidParameter, match="do not add up"):
            left.compose(right)


def test_bare_curves_do_not_slip_in():
    with pytest.raises(InvalidParameter, match="does not say what it bounds"):
        ONCE.compose(GaussianCurve(0.02))
    with pytest.raises(InvalidParameter, match="without words"):
        GaussianCurve(0.02).compose(ONCE)
    with pytest.raises(InvalidParameter, match="without words"):
        total([(ONCE, 2)])
    with pytest.raises(InvalidParameter, match="without words"):
        Release(ONCE, ZERO, Unit.CLIENT, Trust.LOCAL)


def test_what_follows_from_what():
    implied = {
        (Trust.LOCAL, Trust.LOCAL), (Trust.LOCAL, Trust.SECURE_AGGREGATION), (Trust.LOCAL, Trust.CENTRAL),
        (Trust.SECURE_AGGREGATION, Trust.SECURE_AGGREGATION), (Trust.SECURE_AGGREGATION, Trust.CENTRAL),
        (Trust.CENTRAL, Trust.CENTRAL), (Trust.LOCAL, Trust.SHUFFLED), (Trust.SHUFFLED, Trust.SHUFFLED),
    }  # fmt: skip
    for near, far, held, asked in itertools.product(Adjacency, Adjacency, Trust, Trust):
        release = Release(PureCurve(0.5), near, Unit.CLIENT, held)
        if (near is far or near is REPLACE) and (held, asked) in implied:
            converted = release.under(adjacency=far, trust=asked)
            assert (converted.adjacency, converted.trust, converted.curve) == (far, asked, release.curve)
        else:
            with pytest.raises(InvalidParameter):
                release.under(adjacency=far, trust=asked)
    assert ONCE.under() == ONCE


def test_a_sample_level_names_its_samples():
    with pytest.raises(InvalidParameter, match="samples must be the number"):
        Release(GaussianCurve(0.02), ZERO, Unit.SAMPLE, Trust.LOCAL)
    with pytest.raises(InvalidParameter, match="left out"):
        Release(GaussianCurve(0.02), ZERO, Unit.CLIENT, Trust.LOCAL, samples=3)
    with pytest.raises(InvalidParameter, match="samples must be"):
        Release(GaussianCurve(0.02), ZERO, Unit.SAMPLE, Trust.LOCAL, samples=0)
    few = Release(GaussianCurve(0.02), ZERO, Unit.SAMPLE, Trust.LOCAL, samples=3)
    many = Release(GaussianCurve(0.01), ZERO, Unit.SAMPLE, Trust.LOCAL, samples=6)
    assert many.compose(few).samples == 3


@pytest.mark.parametrize(
    "words",
    [(3.0, ZERO, Unit.CLIENT, Trust.LOCAL), (PureCurve(1.0), "zero-out", Unit.CLIENT, Trust.LOCAL),
     (PureCurve(1.0), ZERO, "client", Trust.LOCAL), (PureCurve(1.0), ZERO, Unit.CLIENT, "local")],
)  # fmt: skip
def test_refuses_words_that_are_none(words):
    with pytest.raises(InvalidParameter):
        Release(*words)
