"""A clip that follows the updates: how it moves from round to round.

Idea     the server wants a clip that leaves a share q of updates alone. From scouts' answers it estimates the share
         that this round's clip left alone, and moves the clip by a factor, up where the share is too small. The first
         steps are long, so that a start ten times too high or too low is made good in six rounds, and shorten to a
         rate that goes on following. The answers' noise is public: where it is more than half a share, steps are
         shortened by as much, so that few scouts make the clip slow and not wild.
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
REACH = 1e4  # how far the clip may go from where it began, both ways: updates that shrink to nothing end there


@final
@dataclass(frozen=True, slots=True)
class ClipRule:
    """The share of updates that a clip shall leave alone, and how fast the clip follows."""

    quantile: float
    rate: float = RATE

    def __post_init__(self) -> None:
        """Refuse a share that no clip can have for long, and a rate without a meaning."""
        number = check_real(self.quantile, "clip_quantile")
        require(number < 1, "clip_quantile", self.quantile, "between 0 and 1, both excluded")
        object.__setattr__(self, "quantile", number)
        object.__setattr__(self, "rate", check_real(self.rate, "clip_rate", at_most=LARGEST_RATE))

    def following(self, clip: float, answers: Answers, number: int) -> float:
        """Return the clip of the round after round ``number``, from 0 on."""
        rate = max(self.rate, FIRST / (number + 2)) / max(1.0, 2 * answers.deviation)
        return clip * math.exp(-rate * (answers.share - self.quantile))


@final
@dataclass(slots=True, eq=False)
class MovingClip:
    """The clip of a run as it moves; ``history`` has those of all rounds so far, the next one's last.

    >>> moving = MovingClip.from_start(1.0, quantile=0.5)
    >>> moving.move(Answers(share=1.0, deviation=0.1))  # the clip left all updates alone: it is too large
    >>> [round(clip, 2) for clip in moving.history]
    [1.0, 0.47]
    """

    rule: ClipRule
    history: list[float]
    _answered: float  # the last clip that somebody answered to

    @classmethod
    def from_start(cls, clip: float, *, quantile: float, rate: float = RATE) -> MovingClip:
        """Where a run begins, and the share of updates that its clip shall leave alone."""
        start = check_real(clip, "clip")
        return cls(ClipRule(quantile, rate), [start], start)

    @property
    def clip(self) -> float:
        """Of the round that is next, or under way."""
        return self.history[-1]

    def move(self, answers: Answers | None) -> None:
        """On to the next round.

        Where nobody answered, because no owner allows such a clip perhaps, it is that of the last round with answers.
        """
        start, found = self.history[0], self._answered
        if answers is not None:
            self._answered = self.clip
            found = self.rule.following(self.clip, answers, len(self.history) - 1)
        self.history.append(min(max(found, start / REACH), start * REACH))
