"""Scouts: any mechanism, and randomised answers about whether a clip leaves updates unchanged.

Idea     a good clip is unknown beforehand and changes as a model learns. So one client in twenty,
         drawn in public, scouts: it sends no update in that round, and answers by randomised
         response whether its update was no longer than the round's clip. The server moves the next
         clip towards one that leaves the wanted share of updates unchanged; the only cost is the
         missing updates, 5.3 % of squared error. A release, update or answer, costs the larger of
         both (`Cost.either`), so a server gains nothing by choosing who scouts.
Symbols  t = T / 2^64: an answer is true with probability t, else a coin; one client in n scouts.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), "Differentially private learning with
         adaptive clipping", whose clients all send a bit to a trusted server;
         docs/theory/numerics.md, "Scouts".
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import final

import numpy as np
from attrs import define, evolve, field, frozen
from scipy.special import erfcinv, erfinv

from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import (
    Ability,
    SharedRows,
    Summable,
)
from quietbit.mechanism.base import (
    Accumulator,
    Answers,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    Wrapper,
    check_mechanism,
    only,
    passed_on,
)
from quietbit.mechanism.response import CellCounts, RandomisedResponse
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["Scout", "Scouted", "scout_rank"]

WORDS = 2**64
RANKS = 2**256


def scout_rank(run: bytes, number: int, node: int) -> int:
    """Return a node's rank in a round's public order, from 0 to 2^256 - 1; low ranks scout."""
    name = b"quietbit/scouts/" + len(run).to_bytes(8, "little") + run
    name += number.to_bytes(8, "little") + node.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(name).digest())


def _every(value: int) -> int:
    return check_int(value, "every", 2)  # with 1 all would scout, and none send an update


@final
@frozen
class Scouted(Wrapper, Summable, SharedRows):
    """Any mechanism, at the cost of an update or of a scout's answer, whichever is larger.

    One client in ``every`` answers (`Scout`), truly with probability ``truth``.
    """

    inner: Mechanism = field(converter=check_mechanism)
    every: int = field(converter=_every)
    truth: float = field()
    answer: RandomisedResponse = field(init=False, repr=False, eq=False)

    @inner.validator
    def _check_inner(self, attribute: object, value: Mechanism) -> None:
        """Refuse scouts inside scouts."""
        require(not value.scouting, "inner", type(value).__name__, "a mechanism without scouts")

    @answer.default
    def _answer(self) -> RandomisedResponse:
        return RandomisedResponse(2, self.truth)

    scouting = True
    shared_rows = passed_on("inner.shared_rows")
    unproject = passed_on("inner.unproject")
    mean_from_sum = passed_on("inner.mean_from_sum")
    kept_from_sum = passed_on("inner.kept_from_sum")

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node sends an update in this round, that is, does not scout."""
        return scout_rank(run, number, node) * self.every >= RANKS

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of an update or of a scout's answer, whichever is larger."""
        return self._with_answer(self.inner.cost(adjacency), adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the same for one sample, which can change an answer as much as all can."""
        cost = self.inner.sample_cost(adjacency, samples)
        return self._with_answer(cost, Adjacency.REPLACE_ONE)

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the larger cost of an update in a sum and of an unmasked answer."""
        return self._with_answer(Summable.of(self.inner).sum_cost(clients, adjacency), adjacency)

    def _with_answer(self, cost: Cost, adjacency: Adjacency) -> Cost:
        return cost.either(_answer_cost(self.answer, adjacency))


@final
@frozen
class Scout(Mechanism, SharedRows):
    """A scout's answer: whether its update is no longer than the clip of the round.

    The cost of ``scouted`` covers updates and answers.
    """

    scouted: Scouted = field(validator=only(Scouted, "a Scouted"))
    ball = passed_on("scouted.ball")
    shared_rows = passed_on("scouted.shared_rows")  # scouts replay rounds like other clients
    unproject = passed_on("scouted.unproject")
    priced_as = passed_on("scouted.priced_as")
    cost = passed_on("scouted.cost")
    unmasked = True
    scouting = True

    @property
    def layout(self) -> Layout:
        """One byte: 0 for an update no longer than the clip, else 1."""
        return Layout.opaque(self.ball.dimension, 1)

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether the mechanism that it scouts for has the ability, such as shared rows."""
        return ability.find(self.scouted) is not None

    def for_round(self, run: bytes, number: int) -> Scout:
        """Return the scout of the round's mechanism."""
        inner = self.scouted.inner.for_round(run, number)
        return Scout(evolve(self.scouted, inner=inner))

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node scouts in this round."""
        return not self.scouted.is_turn_of(run, number, node)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the answer or a coin; always a coin for a zero update."""
        length = kernel.norm(update, self.ball.norm.order)
        first, second = (int(word) for word in rng.draw(2).uniform64(0, 0, 2))
        if length > 0 and first < self.scouted.answer.threshold:
            out[0] = length > clip
        else:
            out[0] = second >> 63

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return a counter of the answers."""
        return _Tally(self.scouted.answer, np.zeros(2, dtype=np.int64))

    def error(self) -> Error:
        """Refuse: an answer is about the length of an update, and decodes to no update."""
        raise InvalidParameter.of("mechanism", "one that decodes to updates", "Scout")


@final
@define(eq=False)
class _Tally(CellCounts):
    """How many scouts say that the clip left their update unchanged, and how many do not."""

    def reader(self, count: int) -> Reader:
        rule = "one that decodes to updates"
        raise InvalidParameter.of("mechanism", rule, "Scout", "read `answers` instead")

    def answers(self, count: int) -> Answers:
        """Return the share that the clip leaves unchanged; the deviation covers coins and draw."""
        share = self.mechanism.share(int(self.counts[0]) / count)
        truth = self.mechanism.truth
        return Answers(share, 0.5 / (truth * math.sqrt(count)))


def _answer_cost(response: RandomisedResponse, adjacency: Adjacency) -> Cost:
    """Return the bare cost of an answer, from its laws and the Gaussians whose signs have them."""
    exact_lie = (1 - Fraction(response.threshold, WORDS)) / 2
    truth = float(1 - 2 * exact_lie)
    lie = float(exact_lie)
    centre = math.sqrt(2) * float(erfinv(truth) if truth < 0.5 else erfcinv(2 * lie))
    if adjacency is Adjacency.ZERO_OUT:
        neighbour = [0.5, 0.5]
        distance = centre
    else:
        neighbour = [lie, 1 - lie]
        distance = 2 * centre
    slope = round_up(distance**2 / 2, 1e-12)
    return Cost.from_masses([1 - lie, lie], neighbour, relative_error=1e-15, pair=slope)
