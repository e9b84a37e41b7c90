"""A clip that may move: any mechanism, rescaled to the clip of a round, with one bit that says whether the clip bit.

Idea     nobody knows a good clip beforehand, and it changes as a model learns. Beside its release a client answers one
         question by randomised response: was my update no longer than this round's clip? The mean of the answers, made
         unbiased, is the share of updates that the clip leaves alone, and the server moves the clip of the next round
         towards the one that leaves a wanted share alone. The clip of a round is public and part of the mechanism's
         identity: a payload made for another clip is refused. Without the bit it is the clip alone that may move, where
         scouts speak of lengths instead (`quietbit.plan.scouts`).
Symbols  C = this round's clip; R = radius of the inner mechanism; p = chance that the bit lies, a multiple of 2^-64.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), "Differentially private learning with adaptive clipping",
         whose clients send the bit to a trusted server; here it leaves the client private. Warner (1965) for the bit.

Account. An update is clipped to C, multiplied by R / C, and handed to the inner mechanism, which clips it again: the
inner account holds whatever C is, to the last digit, and so does that of a run whose clip moves. The bit is a function
of one client's data that lies with probability p: its two laws differ by the factor (1 - p) / p at most, for every pair
of neighbours. Zero-out needs a thought: the zero update has norm 0, so its bit says yes like that of any short update,
and the worst pair is that of replace-one. Both releases are made of words of their own, so their costs add up.

Body. That of the inner mechanism and one code more, 0 or 1, as wide as the others; after a body without codes, a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import final

import numpy as np
from attrs import define, evolve, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import check_real, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.ball import Ball, own_parts, scaled
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
    summable,
)
from quietbit.privacy.conversion import round_up
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Adjacency

__all__ = ["LARGEST_BIT_EPSILON", "AdaptiveClip"]

WORDS = 2**64
LARGEST_BIT_EPSILON = 20.0


def _bit_epsilon(value: float | None) -> float | None:
    return None if value is None else check_real(value, "bit_epsilon", at_most=LARGEST_BIT_EPSILON)


@final
@frozen
class AdaptiveClip(Wrapper):
    """Any mechanism on updates clipped to ``clip``, and one randomised bit: whether the update was no longer.

    ``bit_epsilon`` is what the bit costs in a release, under either adjacency; None for a release without a bit.
    """

    inner: Mechanism = field(converter=check_mechanism)
    clip: float = field()
    bit_epsilon: float | None = field(converter=_bit_epsilon)
    domain: Ball = field(init=False, repr=False, eq=False)  # where updates are clipped to in this round
    lies: int = field(init=False, repr=False, eq=False)  # of 2^64 words, those that make the bit lie

    @inner.validator
    def _check_inner(self, attribute: object, value: Mechanism) -> None:
        """Refuse a clip that moves twice."""
        require(not value.clip_moves, "inner", type(value).__name__, "a mechanism whose clip does not move")

    @domain.default
    def _domain(self) -> Ball:
        return evolve(self.inner.domain, radius=self.clip)

    @lies.default
    def _lies(self) -> int:
        if self.bit_epsilon is None:
            return WORDS // 2
        lies = math.ceil(WORDS / (1 + math.exp(self.bit_epsilon)))  # roundings and all: the price is this number's
        require(2 * lies < WORDS, "bit_epsilon", self.bit_epsilon, "large enough that the bit says something")
        return lies

    @property
    def layout(self) -> Layout:
        """One code more than the inner body has; one byte more where it has none."""
        within = self.inner.layout
        if self.bit_epsilon is None:
            return within
        if within.bits:
            return Layout.codes(within.bits, within.count + 1)
        return Layout.opaque(within.count, within.size + 1)

    @property
    def priced_as(self) -> AdaptiveClip:
        """The same at the inner mechanism's own radius: its price is that of every clip."""
        return evolve(self, inner=self.inner.priced_as, clip=self.inner.domain.radius)

    @property
    def clip_moves(self) -> bool:
        """It does."""
        return True

    def at_clip(self, clip: float) -> AdaptiveClip:
        """Return the same mechanism in a round of another clip, at the same price."""
        return evolve(self, clip=clip)

    def write(self, update: Parts, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Write the inner mechanism's release of the clipped and rescaled update; then the bit, drawn separately."""
        kept = own_parts(update)
        length = kernel.norm(kept, self.inner.domain.norm.order)
        within = self.inner.layout
        shorter = scaled(kept, clip_factor(length, self.clip) * self._ratio)
        self.inner.write(shorter, rng, kernel, out[: within.size])
        if self.bit_epsilon is None:
            return
        word = int(rng.draw(1).uniform64(0, 0, 1)[0])
        said = (length <= self.clip) != (word < self.lies)
        place = _place(within)
        out[place // 8] |= np.uint8(said << place % 8)

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of the inner mechanism's sums and of the number of bits that say yes."""
        return _Counting(self, self.inner.accumulator(kernel, max_payloads))

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of the inner mechanism plus the bit's; one sample can flip the bit as well as all can."""
        cost = self.inner.cost(adjacency)
        return cost if self.bit_epsilon is None else cost + Cost.pure(self.bit_epsilon_upper)

    def sample_cost(self, adjacency: Adjacency, samples: int) -> Cost:
        """Return likewise that of one sample."""
        cost = self.inner.sample_cost(adjacency, samples)
        return cost if self.bit_epsilon is None else cost + Cost.pure(self.bit_epsilon_upper)

    @property
    def summable(self) -> bool:
        """Where there is no bit, which a sum would not hide, as the inner mechanism is."""
        return self.bit_epsilon is None and self.inner.summable

    def sum_cost(self, clients: int, adjacency: Adjacency) -> Cost:
        """Return the inner mechanism's: whatever the clip is, it is handed an update of its own ball."""
        return summable(self).inner.sum_cost(clients, adjacency)  # type: ignore[attr-defined, no-any-return]

    @property
    def bit_epsilon_upper(self) -> float:
        """log((1 - p) / p) of the p that is sampled with, rounded up."""
        return round_up(math.log1p(Fraction(WORDS - 2 * self.lies, self.lies)), 1e-14)

    def error(self) -> Error:
        """Return the inner mechanism's error, in units of this clip."""
        found, ratio = self.inner.error(), 1 / self._ratio
        return evolve(found, squared=found.squared * ratio**2, bias=found.bias * ratio)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the inner mechanism's, in units of this clip; rounding never pushes a value out of its ball."""
        radius = self.inner.domain.radius
        mean, variance = self.inner.decoded(max(-radius, min(radius, value * self._ratio)))
        return mean / self._ratio, variance / self._ratio**2

    @property
    def shared_error(self) -> float:
        """The inner mechanism's, in units of this clip."""
        return self.inner.shared_error / self._ratio**2

    @property
    def honest_length(self) -> float:
        """The inner mechanism's, in units of this clip."""
        return self.inner.honest_length / self._ratio

    @property
    def _ratio(self) -> float:
        """R / C."""
        return self.inner.domain.radius / self.clip


@final
@define(eq=False)
class _Counting(Accumulator):
    """The inner mechanism's accumulator, in units of the clip, and how many said that the clip left them alone."""

    mechanism: AdaptiveClip
    sums: Accumulator
    ones: int = 0

    @property
    def group(self) -> int:
        return self.sums.group

    def check(self, body: Body) -> None:
        """Refuse an answer that is neither 0 nor 1, and what the inner mechanism refuses."""
        rest, said = self._parts(body)
        if said not in (0, 1):
            refuse_payload("answer of the payload", "0 or 1", said)
        self.sums.check(rest)

    def add(self, bodies: Sequence[Body]) -> None:
        parts = [self._parts(body) for body in bodies]
        self.sums.add([rest for rest, _ in parts])
        self.ones += sum(said for _, said in parts)

    def reader(self, count: int) -> Reader:
        read, ratio = self.sums.reader(count), self.mechanism._ratio
        return lambda start, stop: read(start, stop) / ratio

    def answers(self, count: int) -> Answers | None:
        """Return the share of ``count`` clients that the clip left alone, from the bits that say so."""
        if self.mechanism.bit_epsilon is None:
            return None
        lie = self.mechanism.lies / WORDS
        truth = 1 - 2 * lie
        return Answers((self.ones / count - lie) / truth, math.sqrt(lie * (1 - lie) / count) / truth)

    def kept(self, count: int) -> FloatVector:
        """Return the inner mechanism's, in units of this clip: whoever replays them need not know the clip."""
        return self.sums.kept(count) / self.mechanism._ratio

    def _parts(self, body: Body) -> tuple[Body, int]:
        """Split a body into the inner body, as its mechanism wrote it, and the answer."""
        if self.mechanism.bit_epsilon is None:
            return body, 0
        within = self.mechanism.inner.layout
        place = _place(within)
        said = int.from_bytes(body[place // 8 :].tobytes(), "little") >> place % 8
        rest = body[: within.size]
        if place % 8:  # the last byte is shared: the answer's bits are the inner body's padding
            rest = rest.copy()
            rest[-1] &= np.uint8((1 << place % 8) - 1)
        return rest, said


def _place(layout: Layout) -> int:
    """Return the index of the answer's bit: after the last code, or after the last byte."""
    return layout.bits * layout.count if layout.bits else 8 * layout.size
