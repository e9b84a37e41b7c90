"""A clip that follows the updates from round to round.

Idea     the server wants a clip that leaves a share q of updates unchanged. From scouts' answers it estimates the share
         that this round's clip left unchanged, and multiplies the clip by a factor, above 1 where the share is too
         small. The first steps are long, so that a start ten times off is corrected in six rounds. The answers' noise
         is public: where it exceeds half a share, steps are shortened by as much.
Symbols  C <- C exp(-r (share - q) / max(1, 2 s)); s = the estimate's standard deviation from the answers' noise;
         r = max(rate, 3 / (t + 2)) in round t = 0, 1, ..., as in stochastic approximation.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), Algorithm 1, geometric updates with a constant rate of 0.2;
         Robbins and Monro (1951) for steps that shorten.
"""

from __future__ import annotations

import math
from typing import final

from attrs import define

from quietbit.errors import check_real, require
from quietbit.mechanism.base import Answers

__all__ = ["RATE", "MovingClip"]

RATE = 0.2
FIRST = 3.0
LARGEST_RATE = 2.0
REACH = 1e4  # largest factor between the clip and its start, both ways: updates that shrink to nothing end there


@final
@define(eq=False)
class MovingClip:
    """The moving clip of a run; ``history`` has the clips of all rounds so far, the next round's last.

    >>> moving = MovingClip.from_start(1.0, quantile=0.5)
    >>> moving.move(Answers(share=1.0, deviation=0.1))  # the clip left all updates alone: it is too large
    >>> [round(clip, 2) for clip in moving.history]
    [1.0, 0.47]
    """

    quantile: float
    rate: float
    history: list[float]
    _answered: float  # the last clip that scouts answered about

    @classmethod
    def from_start(cls, clip: float, *, quantile: float, rate: float = RATE) -> MovingClip:
        """Start a run at ``clip``, aiming at the share ``quantile`` of unchanged updates."""
        start, share = check_real(clip, "clip"), check_real(quantile, "clip_quantile")
        require(share < 1, "clip_quantile", quantile, "between 0 and 1, both excluded")
        return cls(share, check_real(rate, "clip_rate", at_most=LARGEST_RATE), [start], start)

    @property
    def clip(self) -> float:
        """The clip of the round that is next or in progress."""
        return self.history[-1]

    def move(self, answers: Answers | None) -> None:
        """Move on to the next round; without answers, to the clip of the last round with answers."""
        start, found = self.history[0], self._answered
        if answers is not None:
            self._answered = self.clip
            rate = max(self.rate, FIRST / (len(self.history) + 1)) / max(1.0, 2 * answers.deviation)
            found = self.clip * math.exp(-rate * (answers.share - self.quantile))
        self.history.append(min(max(found, start / REACH), start * REACH))
