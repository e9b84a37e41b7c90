"""A round of a simulation gives parts the hooks that engines give them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.part import Part
from quietbit.federation.simulate import Training, simulate

GIVEN = {
    "clip": 1.0,
    "adjacency": "zero-out",
    "cohort": 20,
    "rng": "seeded",
    "seed": 3,
}
REPLAYED = {"design_epsilon": 2.0, "coordinates": 8, "replay": True}
TRAINING = Training(lr=0.1, rounds=4)


class Sizes(Part):
    """Adds up the sizes of requests and replies, those of scouts among them."""

    section: ClassVar[str] = "sizes"

    def __init__(self):
        self.down = 0
        self.up = 0

    def close(self, closed):
        for member in (closed, *closed.side_rounds):
            self.down += member.report.downlink
            self.up += member.report.uplink
        return {}


class Half(Part):
    """Counts the clients with even numbers alone, but for a trace."""

    def weight(self, scope, reply):
        return 1.0 if int(reply.node) % 2 == 0 else 2.0**-40


def test_parts_see_the_bytes_that_clients_replay():
    sizes = Sizes()
    run = simulate(small_problem(), flat_plan("vmvu", **GIVEN, **REPLAYED), TRAINING, parts=[sizes])
    assert run.status == "finished"
    assert sizes.down == run.downlink_bytes
    assert sizes.up == run.uplink_bytes


def test_parts_weight_releases():
    plan = flat_plan("gaussian", noise_multiplier=2.0, **GIVEN)
    plain = simulate(small_problem(), plan, TRAINING, parts=[Part()])
    weighted = simulate(small_problem(), plan, TRAINING, parts=[Half()])
    assert weighted.status == "finished"
    assert not np.allclose(weighted.parameters, plain.parameters)
