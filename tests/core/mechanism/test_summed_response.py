"""Answers for sums: bits as often as the law says, shares without bias, and no way round the
sampler.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.statistical.kit import assert_binomial, seed
from quietbit import Uplink
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.registry import build, describe, family_of
from quietbit.mechanism.response import SummedResponse
from quietbit.target import Adjacency
from quietbit.wire.payload import Payload
from refusals import refuses

SENT = 2000


def sent(mechanism, shares, words):
    uplink = Uplink(mechanism)
    return np.array([Payload.from_bytes(uplink.send(shares, words)).codes() for _ in range(SENT)])


@pytest.mark.parametrize(
    ("cells", "shares", "ones"),
    [
        (2, [0.0, 1.0], [0.9]),
        (2, [1.0, 0.0], [0.1]),
        (2, [0.0, 0.0], [0.5]),
        (2, [0.25, 0.75], [0.7]),
        (11, np.eye(11)[10], [0.1] * 10 + [0.9]),
        (11, np.zeros(11), [0.1] * 11),
        (11, np.full(11, 5.0), [0.1 + 0.8 / 11] * 11),
    ],
)
def test_every_bit_is_told_as_often_as_its_law_says(cells, shares, ones):
    lie = 0.1
    mechanism = SummedResponse(cells, np.floor(lie * 2.0**40) / 2.0**40)
    found = sent(mechanism, np.asarray(shares, dtype=np.float64), seeded_rng(seed(cells)))
    assert found.shape == (SENT, len(ones))
    for place, probability in enumerate(ones):
        assert_binomial(
            found[:, place : place + 1].sum(axis=0), SENT, probability, false_alarm=1e-9
        )


@pytest.mark.parametrize("cells", [2, 3, 9])
def test_the_mean_of_a_sum_has_no_bias_and_is_that_of_payloads(cells):
    mechanism, rng = SummedResponse(cells, 0.125), np.random.default_rng(3)
    truth = rng.dirichlet(np.ones(cells))
    uplink, words = Uplink(mechanism), seeded_rng(5)
    payloads = [uplink.send(truth, words) for _ in range(SENT)]
    total = sum(Payload.from_bytes(one).codes().astype(np.int64) for one in payloads)
    mean = mechanism.mean_from_sum(total, SENT)
    np.testing.assert_allclose(uplink.receive(payloads), mean, atol=1e-6)
    deviation = np.sqrt((mechanism.error().squared + 0.25) / SENT)
    assert np.abs(mean - truth).max() < 6 * deviation


def test_sums_that_no_clients_can_have_are_refused():
    with refuses("sums of codes", (1.0, 11.0)):
        SummedResponse(3, 0.125).mean_from_sum(np.array([1, 2, 11]), 10)


@pytest.mark.parametrize("lie", [0.0, 0.5, -0.1, float("nan"), 0.1, 2.0**-41])
def test_a_lie_that_is_none_or_not_exact_is_refused(lie):
    with refuses("lie"):
        SummedResponse(2, lie)


def test_it_is_rebuilt_from_its_description_and_known_as_an_answer():
    mechanism = SummedResponse.within(1.0, 1e-6, 4, Adjacency.ZERO_OUT, 50)
    assert build(describe(mechanism)) == mechanism
    assert family_of(mechanism) == "summed-response"


def test_seen_alone_it_costs_far_more_than_in_a_sum():
    mechanism = SummedResponse.within(0.5, 1e-5, 2, Adjacency.REPLACE_ONE, 10_000)
    assert mechanism.privacy(Adjacency.REPLACE_ONE).pure_epsilon() > 4
    assert 0.49 < mechanism.sum_privacy(10_000, Adjacency.REPLACE_ONE).epsilon(1e-5) <= 0.5
