"""A problem of a user's own that does not clip, or computes NaN: nothing of it leaves as it is.

Once, `simulate` with I-MVU took rows as they came: a run whose rows were longer than the clip
reported an epsilon of 1.00 and sent one of 3.45, and rows of NaN were encoded. The loss here is
exact: one-bit codes of a coordinate are counted by enumeration at what the mechanism was given, and
the claim must hold for that.
"""

import math

import numpy as np
import pytest

import quietbit
from plans import flat_plan
from quietbit.federation.simulate import Score, Training, simulate
from quietbit.wire.uplink import Uplink

D, CLIENTS = 16, 40
KINDS = [
    {"mechanism": "imvu", "design_epsilon": 1.0},
    {"mechanism": "imvu", "design_epsilon": 3.0, "bits": 2},
    {"mechanism": "mvu", "design_epsilon": 2.0, "levels": 9},
    {"mechanism": "gaussian", "noise_multiplier": 2.0},
    {"mechanism": "sign", "noise_multiplier": 2.0},
    {"mechanism": "skellam", "noise_multiplier": 2.0},
    {"mechanism": "gaussian", "noise_multiplier": 2.0, "trust": "central"},
]
MECHANISMS = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(str(value) for value in kind.values())
)


class Careless:
    """Every client's update is ``row``, whatever the clip."""

    name, dimension, sizes = "careless", D, np.ones(CLIENTS, dtype=np.int64)

    def __init__(self, row):
        self.row = np.asarray(row, dtype=np.float32)

    def initial(self, seed):
        return np.zeros(D, dtype=np.float32)

    def updates(self, parameters, clients, plan, out):
        out[:] = self.row

    def evaluate(self, parameters):
        return Score(0.5, 1.0)


def run(row, kind, **given):
    plan = flat_plan(
        **{
            "clip": 1.0,
            "adjacency": "replace-one",
            "cohort": CLIENTS,
            "rng": "seeded",
            **kind,
            **given,
        }
    )
    return simulate(Careless(row), plan, Training(1.0, 1, momentum=0.0))


@MECHANISMS
def test_a_row_that_is_too_long_is_what_its_clipped_self_would_be(kind):
    long = np.linspace(-3, 5, D)
    short = long.astype(np.float32).astype(np.float64)
    short *= (1 - 2.0**-22) / np.linalg.norm(short)
    found, expected = run(long, kind), run(short, kind)
    assert found.status == expected.status == "finished"
    # Clipped by two routes, inputs differ by a relative 2^-20: no code of these seeded bits
    # changes, no float by more.
    np.testing.assert_allclose(found.parameters, expected.parameters, atol=1e-5)
    unclipped = run(long, kind, clip=20.0)
    assert np.abs(unclipped.parameters - expected.parameters).max() > 1e-2  # the test can fail


@MECHANISMS
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_that_is_not_finite_is_refused_before_a_bit_is_drawn(kind, bad, monkeypatch):
    drawn = []
    make = quietbit.federation.simulate.clients.client_rng

    def counted(*given):
        inner = make(*given)

        def of(number, client):
            rng = inner(number, client)

            class Source:
                def draw(self, count):
                    drawn.append(count)
                    return rng.draw(count)

            return Source()

        return of

    monkeypatch.setattr(quietbit.federation.simulate.clients, "client_rng", counted)
    row = np.zeros(D)
    row[3] = bad
    found = run(row, kind)
    assert found.status == "refused"
    assert "finite" in found.reason
    assert found.rounds == 0
    assert not found.parameters.any()
    assert drawn == []
    assert run(np.zeros(D), kind).status == "finished"
    assert drawn  # the count can rise


def test_what_leaves_costs_no_more_than_is_claimed():
    """The exact loss of one-bit codes between the longest rows of either sign, against the
    account of the run.
    """
    plan = {"mechanism": "imvu", "design_epsilon": 1.0, "delta": 0.0, "norm": "l1"}
    found = run(np.full(D, 9.0), plan)
    mechanism, claim = found.mechanism, found.guarantee.epsilon_upper
    sent = Uplink(mechanism).mechanism.ball.clip(np.full(D, 9.0))
    ones = [mechanism.distribution(float(sign * sent[0]))[1] for sign in (1, -1)]
    loss = D * math.log(ones[0] / ones[1])
    assert loss <= claim
    outside = 1 / (1 + math.exp(-9.0)) / (1 - 1 / (1 + math.exp(-9.0)))
    assert D * math.log(outside) > claim  # what unclipped rows would have cost
