"""Descriptions, settings and requests with extreme but legal numbers: priced, or refused in one
sentence.

48 of them used to end in a traceback of OverflowError. 8,600 descriptions and 250 settings were
tried by hand; the tests draw fewer.
"""

import contextlib
import json
import time

import numpy as np
import pytest

from quietbit import Adjacency, Ball, DesignSpec, InterpolatedMVU, Norm, Plan, calibrate, solve
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node.request import ProposedMechanism, Request, description_of
from quietbit_lab.baseline.dithered import DitheredMVU

EXTREME = [
    5e-324,
    1e-310,
    1e-200,
    1e-40,
    1e-9,
    1e9,
    1e38,
    3.5e38,
    1e154,
    1e200,
    1.7e308,
    2**53,
    2**63,
    10**30,
    10**400,
    1,
    2,
    0.5,
    1 - 1e-16,
    700.0,
    745.0,
    1e4,
    float("nan"),
    float("inf"),
]
MECHANISMS = [
    calibrate(
        word, ball=Ball(norm, 42), epsilon=4.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE
    ).mechanism
    for word, norm in (
        ("imvu", Norm.L2),
        ("gaussian", Norm.L2),
        ("laplace", Norm.L1),
        ("sign", Norm.L2),
    )
]


def numbers(value, path=()):
    """The paths of all numbers in nested plain values."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from numbers(inner, (*path, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def test_descriptions_are_priced_or_refused():
    rng, refused = np.random.default_rng(5), 0
    for _ in range(300):
        found = json.loads(description_of(MECHANISMS[rng.integers(len(MECHANISMS))]))
        paths = list(numbers(found))
        path = paths[rng.integers(len(paths))]
        place = found
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = EXTREME[rng.integers(len(EXTREME))]
        try:
            offer = ProposedMechanism.read(json.dumps(found))
            for adjacency in Adjacency:
                offer.cost(adjacency, 0)
        except QuietbitError:
            refused += 1
    assert 0 < refused < 300


def test_an_overflow_in_a_cost_is_a_refusal(monkeypatch):
    def overflows(*_):
        raise OverflowError("math range error")

    monkeypatch.setattr(type(MECHANISMS[1]), "privacy", overflows)
    with pytest.raises(InvalidParameter, match="cost"):
        ProposedMechanism.read(description_of(MECHANISMS[1])).cost(Adjacency.REPLACE_ONE, 0)


def test_the_work_of_pricing_is_bounded():
    """There is no limit on the time: the largest description took 0.3 s on one core, the first
    with its imports.
    """
    ball = Ball(Norm.L2, 2**40)
    large = [
        InterpolatedMVU(solve(DesignSpec(2, 8, 1.0)), ball),
        DitheredMVU(solve(DesignSpec(2, 8, 1.0)), ball),
    ]
    found = calibrate(
        "vmvu", ball=Ball(Norm.L2, 2**20), epsilon=12.0, delta=1e-5, adjacency="replace-one"
    )
    for mechanism in (*large, found.mechanism, *MECHANISMS):
        text, start = description_of(mechanism), time.process_time()
        for adjacency in Adjacency:
            ProposedMechanism.read(text).cost(adjacency, 0)
        assert time.process_time() - start < 5.0


@pytest.mark.parametrize("number", EXTREME)
def test_requests_are_read_or_refused(number):
    for name in ("run", "round", "node", "dimension", "epsilon", "delta"):
        given = {
            "run": 1,
            "round": 1,
            "node": 1,
            "dimension": 42,
            "mechanism": "{}",
            "epsilon": 1.0,
            "delta": 1e-5,
        }
        with contextlib.suppress(InvalidParameter):
            assert Request(**given | {name: number}, adjacency="replace-one").cap


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 10**400},
        {"epsilon": 1e-200},
        {"epsilon": 1e-300},
        {"clip": 10**400},
        {"epsilon": 10**400},
    ],
)
def test_settings_are_met_or_refused(change):
    config = {
        "mechanism": "vmvu",
        "clip": 1.0,
        "epsilon": 8.0,
        "adjacency": "replace-one",
        "releases": 5,
    } | change
    with pytest.raises(InvalidParameter):
        Plan.from_run_config(
            {f"quietbit.{key}": value for key, value in config.items()}
        ).mechanism_for(42)
