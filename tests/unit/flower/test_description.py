"""Mechanisms written down and rebuilt: the same identity, the same curve; anything else refused."""

import json

import pytest

from quietbit._validate import QuietbitError
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.flower.description import curve_of, describe
from quietbit.mechanism.additive import Gaussian, Laplace, Sign
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.dithered import DitheredMVU
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.registry import identity_of
from quietbit.mechanism.skellam import Skellam
from quietbit.privacy.guarantee import Adjacency

L2, L1 = Ball(Norm.L2, 0.3, 12), Ball(Norm.L1, 0.3, 12)
ONE_BIT = solve(DesignSpec(2, 1, 1.7))
MECHANISMS = [
    InterpolatedMVU(ONE_BIT, L2, 2.5, True, "unbiased-at-zero"),
    InterpolatedMVU(ONE_BIT, L1),
    DitheredMVU(solve(DesignSpec(5, 1, 1.7)), L1),
    Gaussian(L2, 3.1),
    Laplace(L1, 3.1),
    Sign(Gaussian(L2, 3.1)),
    Skellam(L2, 3.1, 12),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_curve_is_rebuilt_exactly(mechanism, adjacency):
    text = describe(mechanism)
    curve = curve_of(text, identity_of(mechanism).hex(), adjacency)
    for times, delta in ((1, 1e-5), (7, 1e-6)):
        expected = mechanism.privacy(adjacency).repeat(times).epsilon_upper(delta)
        assert curve.repeat(times).epsilon_upper(delta) == expected


def test_another_identity_and_changed_numbers_are_refused():
    text, identity = describe(MECHANISMS[3]), identity_of(MECHANISMS[3]).hex()
    with pytest.raises(QuietbitError, match="not the one it was noted as"):
        curve_of(text.replace("3.1", "3.2"), identity, Adjacency.ZERO_OUT)
    design = json.loads(describe(MECHANISMS[0]))
    design["design"]["design"]["alphabet"][0] -= 1.0
    with pytest.raises(QuietbitError, match="cannot be rebuilt"):
        curve_of(json.dumps(design), identity_of(MECHANISMS[0]).hex(), Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        '{"kind":"open"}',
        '{"kind":"Ball","norm":"l2"}',
        '{"kind":"Ball","dimension":1,"norm":"l2","radius":1.0}',
    ],
)
def test_what_describes_no_mechanism_is_refused(text):
    with pytest.raises(QuietbitError, match="ledger"):
        curve_of(text, "00", Adjacency.ZERO_OUT)
