"""Means with weights: what they are by hand, how noisy they are, and numbers that nobody has."""

import math

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, WIDTH
from federation.simulate.makers import Flat
from plans import flat_plan
from quietbit import Uplink
from quietbit.errors import InvalidPayload
from quietbit.federation.collectors import Plain
from quietbit.federation.messages import Release
from quietbit.federation.part import Part
from quietbit.federation.parts.weights import weight_of
from quietbit.federation.simulate import Training, simulate
from quietbit.kernel.rng import seeded_rng


def release(payload, weight):
    return Release(1, payload, weight, lambda: None)


@pytest.mark.parametrize(
    "name", ["imvu one bit l2", "gaussian", "vmvu seed", "vmvu shared rows", "scouted gaussian"]
)
def test_a_weighted_mean_is_that_of_the_decoded_releases(name):
    uplink, rng = Uplink(MECHANISMS[name]), seeded_rng(4)
    payloads, weights = (
        [uplink.send(np.ones(WIDTH), rng) for _ in range(40)],
        [1.0, 0.5, 0.25, 1.0] * 10,
    )
    found = Plain(uplink)
    for payload, weight in zip(payloads, weights, strict=True):
        found.add(release(payload, weight))
    single = np.stack([uplink.receive([payload]) for payload in payloads])
    np.testing.assert_allclose(found.mean(), np.average(single, axis=0, weights=weights), atol=1e-6)


def test_equal_weights_are_the_plain_mean_to_the_last_bit():
    uplink = Uplink(MECHANISMS["vmvu seed"])
    payloads = [uplink.send(np.ones(WIDTH), seeded_rng(one)) for one in range(20)]
    found = Plain(uplink)
    for payload in payloads:
        found.add(release(payload, 0.5))
    np.testing.assert_array_equal(found.mean(), uplink.receive(payloads))


def test_weights_are_public_numbers_within_bounds():
    for examples in (1, 7, 80, 999, 1000):
        assert weight_of(examples, 1000) == pytest.approx(max(examples / 1000, 2**-10), rel=0.1)
    assert weight_of(10**12, 1000) == 1.0  # whoever exaggerates counts as the largest
    assert weight_of(math.inf, None) == 1.0
    wrong = [None, 0, -5, 0.5, math.nan, math.inf, "many"]
    for one in wrong:
        with pytest.raises(InvalidPayload, match="number of examples"):
            weight_of(one, 1000)


def test_a_simulation_weights_by_sizes_and_says_what_to_expect():
    problem = Flat(400)
    problem.sizes = np.where(np.arange(400) < 40, 1000, 10)
    given = {
        "clip": 1.0,
        "adjacency": "zero-out",
        "rng": "seeded",
        "seed": 3,
        "noise_multiplier": 0.5,
    }
    runs = [
        simulate(
            problem,
            flat_plan("gaussian", cohort=100, most_examples=most, **given),
            Training(lr=0.1, rounds=4),
        )
        for most in (None, 1000)
    ]
    plain, weighted = (run.expected for run in runs)
    assert plain is not None
    assert weighted is not None
    assert weighted.noise > 2 * plain.noise
    assert runs[0].guarantee == runs[1].guarantee  # multiplying what was released costs nothing


class Half(Part):
    """Counts the clients with even numbers alone, but for a trace."""

    def weight(self, scope, reply):
        return 1.0 if int(reply.node) % 2 == 0 else 2.0**-40


def test_a_part_of_ones_own_weights_the_releases_of_a_simulation():
    given = {"clip": 1.0, "adjacency": "zero-out", "cohort": 20, "rng": "seeded", "seed": 3}
    plan = flat_plan("gaussian", noise_multiplier=2.0, **given)
    training = Training(lr=0.1, rounds=4)
    plain, weighted = (
        simulate(Flat(60), plan, training, parts=[part]) for part in (Part(), Half())
    )
    assert weighted.status == "finished"
    assert not np.allclose(weighted.parameters, plain.parameters)
