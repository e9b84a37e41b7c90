"""A moving clip: any mechanism, rescaled to the clip of a round, and scouts' answers about it.

Idea     a good clip is unknown beforehand and changes as a model learns. So one client in twenty,
         drawn in public, scouts: it sends no update in that round, and answers by randomised
         response whether its update was no longer than the round's clip. The server moves the next
         clip towards one that leaves the wanted share of updates unchanged; the only cost is the
         missing updates, 5.3 % of squared error. The clip of a round is public and part of the
         mechanism's identity. A release, update or answer, costs the larger of both
         (`Cost.either`), so a server gains nothing by choosing who scouts. The inner account holds
         for every clip.
Symbols  C = this round's clip; R = radius of the inner mechanism; t = T / 2^64: an answer is true
         with probability t, else a coin; one client in n scouts.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), "Differentially private learning with
         adaptive clipping", whose clients all send a bit to a trusted server;
         docs/theory/numerics.md, "Scouts".
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any, cast, final

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray
from scipy.special import erfcinv, erfinv

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.abilities import (
    Ability,
    ClipMoves,
    LengthBounded,
    SamplePriced,
    Scouted,
    SharedRows,
    Summable,
    SummableRows,
)
from quietbit.mechanism.ball import Ball, own_parts, scaled
from quietbit.mechanism.base import (
    LEFT_OUT,
    Accumulator,
    Answers,
    AnswersAccumulator,
    Body,
    Error,
    Layout,
    Mechanism,
    Parts,
    Reader,
    RowsAccumulator,
    Wrapper,
    check_mechanism,
    only,
    passed_on,
    rows_accumulator,
)
from quietbit.mechanism.length import honest_length
from quietbit.mechanism.response import CellCounts, RandomisedResponse
from quietbit.privacy.cost import Cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = ["AdaptiveClip", "Scout", "scout_rank"]

WORDS = 2**64
RANKS = 2**256


def scout_rank(run: bytes, number: int, node: int) -> int:
    """Return a node's rank in a round's public order, from 0 to 2^256 - 1; low ranks scout."""
    name = b"quietbit/scouts/" + len(run).to_bytes(8, "little") + run
    name += number.to_bytes(8, "little") + node.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(name).digest())


def _every(value: int | None) -> int | None:
    if value is None:
        return None
    return check_int(value, "every", 2)  # with 1 all would scout, and none send an update


@final
@frozen
class AdaptiveClip(Wrapper, Scouted, SummableRows, SamplePriced, LengthBounded):
    """Any mechanism on updates clipped to ``clip``, which may differ from round to round.

    One client in ``every`` answers instead (`Scout`), truly with probability ``truth``; both are
    None without scouts.
    """

    inner: Mechanism = field(converter=check_mechanism)
    clip: float = field()
    every: int | None = field(default=None, converter=_every, metadata=LEFT_OUT)
    truth: float | None = field(default=None, metadata=LEFT_OUT)
    ball: Ball = field(init=False, repr=False, eq=False)  # of this round's clip
    answer: RandomisedResponse | None = field(init=False, repr=False, eq=False)

    @inner.validator
    def _check_inner(self, attribute: object, value: Mechanism) -> None:
        """Refuse a moving clip inside a moving clip."""
        fixed = ClipMoves.nearest(value) is None
        require(fixed, "inner", type(value).__name__, "a mechanism whose clip does not move")

    @truth.validator
    def _check_truth(self, attribute: object, value: float | None) -> None:
        """Refuse scouts without answers, and answers without scouts."""
        both = (value is None) == (self.every is None)
        require(both, "truth", value, "given where clients scout, and only there")

    @ball.default
    def _ball(self) -> Ball:
        return evolve(self.inner.ball, radius=self.clip)

    @answer.default
    def _answer(self) -> RandomisedResponse | None:
        if self.truth is None:
            return None
        return RandomisedResponse(2, self.truth)

    @property
    def priced_as(self) -> AdaptiveClip:
        """The same at the inner mechanism's radius, whose cost is that of every clip."""
        return evolve(self, inner=self.inner.priced_as, clip=self.inner.ball.radius)

    unmasked = False
    shared_rows = passed_on("inner.shared_rows")
    unproject = passed_on("inner.unproject")

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether clients scout, for scouts; else whether the inner mechanism has it."""
        if ability is Scouted:
            return self.every is not None
        return ability in (ClipMoves, LengthBounded) or ability.find(self.inner) is not None

    def at_clip(self, clip: float) -> AdaptiveClip:
        """Return the same mechanism for a round with this clip, at the same cost."""
        return evolve(self, clip=clip)

    def scout(self) -> Scout:
        """Return the mechanism that scouts of this round answer with."""
        return Scout(self)

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node sends an update in this round, that is, does not scout."""
        return self.every is None or scout_rank(run, number, node) * self.every >= RANKS

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the inner mechanism's release of the clipped and rescaled update."""
        parts = own_parts(update)
        length = kernel.norm(parts, self.inner.ball.norm.order)
        factor = clip_factor(length, self.clip) * self._ratio
        self.inner.write(scaled(parts, factor), rng, kernel, out)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of the inner mechanism's sums."""
        return _Rescaled(self.inner.accumulator(kernel, max_payloads), self._ratio)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of an update or of a scout's answer, whichever is larger."""
        return self._with_answer(self.inner.cost(adjacency), adjacency)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return the same for one sample, which can change an answer as much as all can."""
        cost = SamplePriced.of(self.inner).sample_cost(adjacency, samples)
        return self._with_answer(cost, Adjacency.REPLACE_ONE)

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the larger cost of an update in a sum and of an unmasked answer."""
        return self._with_answer(Summable.of(self.inner).sum_cost(clients, adjacency), adjacency)

    def mean_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the inner mechanism's mean, in units of this clip."""
        return Summable.of(self.inner).mean_from_sum(total, clients) / self._ratio

    def kept_from_sum(self, total: NDArray[Any], clients: int) -> FloatVector:
        """Return the inner mechanism's mean on the rows, in units of this clip."""
        return SummableRows.of(self.inner).kept_from_sum(total, clients) / self._ratio

    def _with_answer(self, cost: Cost, adjacency: Adjacency) -> Cost:
        if self.answer is None:
            return cost
        return cost.either(_answer_cost(self.answer, adjacency))

    def error(self) -> Error:
        """Return the inner mechanism's error, in units of this clip."""
        inner = self.inner.error()
        scale = 1 / self._ratio
        return evolve(
            inner,
            squared=inner.squared * scale**2,
            bias=inner.bias * scale,
            shared=inner.shared * scale**2,
        )

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the inner moments in units of this clip."""
        radius = self.inner.ball.radius
        inner_value = max(-radius, min(radius, value * self._ratio))  # rounding stays in the ball
        mean, variance = self.inner.decoded(inner_value)
        return mean / self._ratio, variance / self._ratio**2

    @property
    def honest_length(self) -> float:
        """The inner mechanism's bound, in units of this clip."""
        return honest_length(self.inner) / self._ratio

    @property
    def _ratio(self) -> float:
        """R / C."""
        return self.inner.ball.radius / self.clip


@final
@frozen
class Scout(Mechanism, ClipMoves, SharedRows):
    """A scout's answer: whether its update is no longer than the clip of ``moving``.

    The cost of ``moving`` covers updates and answers.
    """

    moving: AdaptiveClip = field(validator=only(AdaptiveClip, "an AdaptiveClip"))
    ball = passed_on("moving.ball")
    shared_rows = passed_on("moving.shared_rows")  # scouts replay rounds like other clients
    unproject = passed_on("moving.unproject")
    priced_as = passed_on("moving.priced_as")
    cost = passed_on("moving.cost")
    unmasked = True

    def __attrs_post_init__(self) -> None:
        """Refuse a clip without scouts."""
        every = self.moving.every
        require(every is not None, "every", every, "given for a scout's answer")

    @property
    def layout(self) -> Layout:
        """One byte: 0 for an update no longer than the clip, else 1."""
        return Layout.opaque(self.ball.dimension, 1)

    def offers(self, ability: type[Ability]) -> bool:
        """Return whether the mechanism that it scouts for has the ability, such as shared rows."""
        return ability is ClipMoves or ability.find(self.moving) is not None

    def for_round(self, run: bytes, number: int) -> Scout:
        """Return the scout of the round's mechanism."""
        inner = self.moving.inner.for_round(run, number)
        return evolve(self, moving=evolve(self.moving, inner=inner))

    def at_clip(self, clip: float) -> Scout:
        """Return the same request about this clip, at the same cost."""
        return Scout(self.moving.at_clip(clip))

    def is_turn_of(self, run: bytes, number: int, node: int) -> bool:
        """Return whether a node scouts in this round."""
        return not self.moving.is_turn_of(run, number, node)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the answer or a coin; always a coin for a zero update."""
        length = kernel.norm(update, self.ball.norm.order)
        first, second = (int(word) for word in rng.draw(2).uniform64(0, 0, 2))
        if length > 0 and first < self._response.threshold:
            out[0] = length > self.ball.radius
        else:
            out[0] = second >> 63

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return a counter of the answers."""
        return _Tally(self._response, np.zeros(2, dtype=np.int64))

    def error(self) -> Error:
        """Refuse: an answer is about the length of an update, and decodes to no update."""
        raise InvalidParameter.of("mechanism", "one that decodes to updates", "Scout")

    @property
    def _response(self) -> RandomisedResponse:
        return cast(RandomisedResponse, self.moving.answer)  # checked to exist


@final
@define(eq=False)
class _Tally(CellCounts, AnswersAccumulator):
    """How many scouts say that the clip left their update unchanged, and how many do not."""

    def reader(self, count: int) -> Reader:
        rule = "one that decodes to updates"
        raise InvalidParameter.of("mechanism", rule, "Scout", "read `answers` instead")

    def answers(self, count: int) -> Answers:
        """Return the share that the clip leaves unchanged; the deviation covers coins and draw."""
        share = self.mechanism.share(int(self.counts[0]) / count)
        truth = self.mechanism.truth
        return Answers(share, 0.5 / (truth * math.sqrt(count)))


@final
@define(eq=False)
class _Rescaled(RowsAccumulator):
    """The inner mechanism's accumulator, in units of the clip."""

    sums: Accumulator
    ratio: float

    group = passed_on("sums.group")
    check = passed_on("sums.check")
    add = passed_on("sums.add")

    def reader(self, count: int) -> Reader:
        read = self.sums.reader(count)
        return lambda start, stop: read(start, stop) / self.ratio

    def kept(self, count: int) -> FloatVector:
        """Return the inner mean on the rows, in units of this clip: replaying needs no clip."""
        return rows_accumulator(self.sums).kept(count) / self.ratio


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
