"""A clip that follows the updates from round to round.

Idea     the server wants a clip that leaves a share q of updates unchanged. From scouts' answers it estimates the share
         that this round's clip left unchanged, and multiplies the clip by a factor, above 1 where the share is too
         small. The first steps are long, so that a start ten times too high or too low is corrected in six rounds,
         and shorten to a constant rate. The answers' noise is public: where it exceeds half a share, steps are
         shortened by as much, so that few scouts make the clip slow rather than erratic.
Symbols  C <- C exp(-r (share - q) / max(1, 2 s)); s = the estimate's standard deviation from the answers' noise;
         r = max(rate, 3 / (t + 2)) in round t = 0, 1, ..., as in stochastic approximation.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), Algorithm 1, geometric updates with a constant rate of 0.2;
         Robbins and Monro (1951) for steps that shorten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from quietbit.errors import check_real, require
from quietbit.mechanism.base import Answers

__all__ = ["RATE", "ClipRule", "MovingClip"]

RATE = 0.2
FIRST = 3.0
LARGEST_RATE = 2.0
REACH = 1e4  # largest factor between the clip and its start, both ways: updates that shrink to nothing end there


@final
@dataclass(frozen=True, slots=True)
class ClipRule:
    """The share of updates that a clip should leave unchanged, and how fast the clip follows."""

    quantile: float
    rate: float = RATE

    def __post_init__(self) -> None:
        """Refuse a share that no clip can keep, and a rate that is not usable."""
        number = check_real(self.quantile, "clip_quantile")
        require(number < 1, "clip_quantile", self.quantile, "between 0 and 1, both excluded")
        object.__setattr__(self, "quantile", number)
        object.__setattr__(self, "rate", check_real(self.rate, "clip_rate", at_most=LARGEST_RATE))

    def following(self, clip: float, answers: Answers, number: int) -> float:
        """Return the clip of the round after round ``number``, counted from 0."""
        rate = max(self.rate, FIRST / (number + 2)) / max(1.0, 2 * answers.deviation)
        return clip * math.exp(-rate * (answers.share - self.quantile))


@final
@dataclass(slots=True, eq=False)
class MovingClip:
    """The moving clip of a run; ``history`` has the clips of all rounds so far, the next round's last.

    >>> moving = MovingClip.from_start(1.0, quantile=0.5)
    >>> moving.move(Answers(share=1.0, deviation=0.1))  # the clip left all updates alone: it is too large
    >>> [round(clip, 2) for clip in moving.history]
    [1.0, 0.47]
    """

    rule: ClipRule
    history: list[float]
    _answered: float  # the last clip that scouts answered about

    @classmethod
    def from_start(cls, clip: float, *, quantile: float, rate: float = RATE) -> MovingClip:
        """Start a run at ``clip``, aiming at the share ``quantile`` of unchanged updates."""
        start = check_real(clip, "clip")
        return cls(ClipRule(quantile, rate), [start], start)

    @property
    def clip(self) -> float:
        """The clip of the round that is next or in progress."""
        return self.history[-1]

    def move(self, answers: Answers | None) -> None:
        """Move on to the next round.

        Without answers, perhaps because no owner allows a moving clip, the clip is that of the last round with answers.
        """
        start, found = self.history[0], self._answered
        if answers is not None:
            self._answered = self.clip
            found = self.rule.following(self.clip, answers, len(self.history) - 1)
        self.history.append(min(max(found, start / REACH), start * REACH))
