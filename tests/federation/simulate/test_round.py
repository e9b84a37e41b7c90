"""A round of a simulation gives parts the hooks that engines give them."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.messages import Asked, Reply
from quietbit.federation.part import Part
from quietbit.federation.simulate import Training, simulate
from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round
from refusals import refuses

GIVEN: dict[str, Any] = {
    "clip": 1.0,
    "adjacency": "zero-out",
    "cohort": 20,
    "rng": "seeded",
    "seed": 3,
}
REPLAYED: dict[str, Any] = {"design_epsilon": 2.0, "coordinates": 8, "replay": True}
TRAINING = Training(lr=0.1, rounds=4)


class Weaker(Part):
    """Prepares a mechanism with a tenth of the noise."""

    def prepare(self, mechanism: Any, number: int) -> Any:
        return attrs.evolve(mechanism, noise_multiplier=mechanism.noise_multiplier / 10)


class Sizes(Part):
    """Adds up the sizes of requests and replies."""

    section: ClassVar[str] = "sizes"

    def __init__(self) -> None:
        self.down = 0
        self.up = 0

    def sent(self, scope: Any, asked: Asked) -> None:
        self.down += asked.size

    def arrived(self, scope: Any, reply: Reply) -> None:
        self.up += reply.size


class Half(Part):
    """Counts the clients with even numbers alone, but for a trace."""

    def weight(self, scope: Any, reply: Reply) -> float:
        return 1.0 if int(reply.node) % 2 == 0 else 2.0**-40


def test_a_part_cannot_make_a_round_cheaper_than_its_account() -> None:
    plan = flat_plan("gaussian", noise_multiplier=2.0, **GIVEN)
    run = simulate(small_problem(), plan, TRAINING, parts=[Weaker()])
    assert (run.status, run.rounds) == ("refused", 0)
    problem = small_problem()
    mechanism = plan.mechanism_for(39)
    side = ClientSide(problem, TRAINING.local(plan), plan, mechanism)
    with refuses("mechanism of a round", "Gaussian"):
        play_round(1, np.arange(3), mechanism, side, problem.initial(0), (Weaker(),))


def test_parts_see_the_bytes_that_clients_replay() -> None:
    sizes = Sizes()
    run = simulate(small_problem(), flat_plan("vmvu", **GIVEN, **REPLAYED), TRAINING, parts=[sizes])
    assert run.status == "finished"
    assert sizes.down == run.replayed_bytes == run.downlink_bytes
    assert sizes.up == run.uplink_bytes


def test_parts_see_that_scouts_send_less() -> None:
    sizes = Sizes()
    plan = flat_plan("gaussian", epsilon=50.0, every=4, **GIVEN)
    run = simulate(small_problem(), plan, TRAINING, parts=[sizes])
    assert run.status == "finished"
    assert sizes.up == run.uplink_bytes < 4 * 20 * run.bytes_per_client


def test_parts_weight_releases() -> None:
    plan = flat_plan("gaussian", noise_multiplier=2.0, **GIVEN)
    plain = simulate(small_problem(), plan, TRAINING, parts=[Part()])
    weighted = simulate(small_problem(), plan, TRAINING, parts=[Half()])
    assert weighted.status == "finished"
    assert not np.allclose(weighted.parameters, plain.parameters)
