"""A clip that follows the updates from round to round.

Idea     the server wants a clip that leaves a share q of updates unchanged. From scouts' answers it
         estimates the share that this clip left unchanged, and multiplies the clip by a factor,
         above 1 where the share is too small. Answers about the same clip are pooled over rounds,
         and an interval that contains q moves nothing: few scouts make the clip slow, not wild. The
         first steps are long: a start ten times off is corrected in six.
Limits   noise grows with the clip, and updates that undo noise grow with the noise: where noise
         dominates, a clip that follows lengths would follow its own noise. So the louder a round's
         mean, the less the clip may rise.
Symbols  C <- C exp(-r (share - q)) where |share - q| > 2 s; s = the pooled estimate's standard
         deviation; r = max(0.2, 3 / (t + 2)) for step t = 0, 1, ..., as in stochastic
         approximation; nu = noise of a round's mean, in clips: C stays below 5 / nu^2 times its
         start, and within 100 times either way.
Source   Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021), Algorithm 1, geometric updates with a
         constant rate of 0.2; Robbins and Monro (1951) for steps that shorten.
"""

from __future__ import annotations

import math
from typing import final

from attrs import define, field

from quietbit.errors import check_real, require
from quietbit.mechanism.base import Answers
from quietbit.mechanism.scouts import Scouted

__all__ = ["MovingClip", "why_it_stays"]

RATE = 0.2
FIRST = 3.0
SURE = 2.0  # standard deviations on either side: a 95 % interval
MEMORY = 0.95  # weight of an answer after a round: updates shorten as a model learns
REACH = 100.0  # largest factor between the clip and its start, both ways
RISE = 5.0  # largest factor upwards where the noise is as long as the clip


def answers_needed(truth: float) -> float:
    """Return how many answers it takes to see that a clip leaves all updates unchanged, or none.

    >>> answers_needed(1.0), answers_needed(0.2)
    (4.0, 100.0)
    """
    if truth <= 0:
        return math.inf
    return (SURE / truth) ** 2


def highest_rise(noise: float) -> float:
    """Return the largest factor by which a clip may exceed its start.

    ``noise`` is that of a round's mean, in clips.

    >>> highest_rise(0.1), highest_rise(1.0), highest_rise(5.0)
    (100.0, 5.0, 1.0)
    """
    if noise <= 0:
        return REACH
    return min(REACH, max(1.0, RISE / noise**2))


def why_it_stays(mechanism: Scouted, clip: float, noise: float, releases: int) -> str | None:
    """Return why a run's clip, ``clip`` at first, cannot move; None where it can.

    ``noise`` is that of a round's mean, in clips; ``releases`` counts updates and answers.
    """
    answers = releases / mechanism.every
    needed = answers_needed(mechanism.truth)
    if answers < needed:
        return (
            f"the clip will hardly move from {clip:g}: the run has about {answers:.0f} "
            f"answers of scouts, and one step takes {math.ceil(needed):,}"
        )
    if highest_rise(noise) <= 1:
        loud = f"the noise in the mean of a round is {noise:.2g} times the clip"
        return f"the clip will not rise above {clip:g}: {loud}"
    return None


@final
@define(eq=False)
class MovingClip:
    """The moving clip of a run; ``history`` has the clips of all rounds, the next round's last.

    >>> moving = MovingClip.from_start(1.0, quantile=0.5)
    >>> moving.move(Answers(share=1.0, deviation=0.1))  # all updates unchanged: it is too large
    >>> moving.move(Answers(share=0.6, deviation=0.1))  # within two deviations of the quantile
    >>> [round(clip, 2) for clip in moving.history]
    [1.0, 0.47, 0.47]
    """

    quantile: float
    history: list[float]
    _answered: float  # the last clip that scouts answered about
    _steps: int = field(default=0, init=False)
    _precision: float = field(default=0.0, init=False)  # 1 / s^2 of the answers about this clip
    _weighted: float = field(default=0.0, init=False)  # the share that they estimate, times 1 / s^2

    @classmethod
    def from_start(cls, clip: float, *, quantile: float) -> MovingClip:
        """Start a run at ``clip``, aiming at the share ``quantile`` of unchanged updates."""
        start = check_real(clip, "clip")
        share = check_real(quantile, "clip_quantile")
        require(share < 1, "clip_quantile", quantile, "above 0 and below 1")
        return cls(share, [start], start)

    @property
    def clip(self) -> float:
        """The clip of the round that is next or in progress."""
        return self.history[-1]

    def stay(self) -> None:
        """Go on to the next round at the same clip, where no scouts were asked."""
        self.history.append(self.clip)

    def move(self, answers: Answers | None, noise: float = 0.0) -> None:
        """Go on to the next round; without answers, at the clip of the last round with answers.

        ``noise`` is the length of the noise in the mean of this round, in clips
        (`Forecast.noise`).
        """
        if answers is None:
            self._forget(0.0)
            self.history.append(self._answered)
            return
        self._answered = self.clip
        self._forget(MEMORY)
        precision = 1 / max(answers.deviation, 1e-9) ** 2
        self._precision += precision
        self._weighted += precision * answers.share
        excess = self._weighted / self._precision - self.quantile
        if abs(excess) * math.sqrt(self._precision) <= SURE:
            self.stay()
            return
        excess = min(max(excess, -self.quantile), 1 - self.quantile)
        rate = max(RATE, FIRST / (self._steps + 2))
        self._steps += 1
        self._forget(0.0)
        self.history.append(self._within_reach(self.clip * math.exp(-rate * excess), noise))

    def _within_reach(self, clip: float, noise: float) -> float:
        """Return the nearest clip that is allowed; one beyond the limit may stay, but not rise."""
        start = self.history[0]
        highest = max(start * highest_rise(noise), min(self.clip, start * REACH))
        return min(max(clip, start / REACH), highest)

    def _forget(self, memory: float) -> None:
        self._precision *= memory
        self._weighted *= memory
