"""What to expect of a run before it is started: how loud the noise is beside the updates, and a plain word for it.

Idea     a server sees the mean of a cohort with noise on it. Its length is told as a multiple of the clip, which is the
         most that a mean of updates can measure. Over a run the noise of the rounds averages out and what clients agree
         on does not, so the whole run is judged by the noise of a round over the root of the number of rounds.
Symbols  d = dimension; C = clip; m = cohort; T = rounds; e = squared error of a decoded coordinate.
         nu = noise of a round's mean / C: sqrt(d e / m) / C; sqrt(d e) / (m C) where noise is added once, to the sum.
         rho = nu / sqrt(T).
Source   thresholds: measured by benchmarks/expectations.py, kept in benchmarks/README.md. Whatever the number of
         rounds, a linear model keeps all but a few points of its accuracy at rho = 0.1, loses a third of it at 0.3, and
         guesses at 1; the mean of vectors is off by rho times the clip.

Inverse. e does not depend on the number of clients, and not on d either but for a few percent: so rho^2 is proportional
to d over the number of updates m T, and a useful rho says how many are needed, or how few parameters they would do for.
Where noise is added once, rho is proportional to sqrt(d / T) / m instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import final

from quietbit._validate import member, require, whole_number
from quietbit.mechanism.base import Mechanism
from quietbit.privacy.guarantee import Trust

__all__ = ["HOPELESS_ABOVE", "USEFUL_UP_TO", "Expectation", "Verdict", "about", "expectation"]

USEFUL_UP_TO, HOPELESS_ABOVE = 0.1, 1.0
WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


class Verdict(Enum):
    """What a run of this noise may come to."""

    USEFUL = "useful"
    HARD = "hard"
    HOPELESS = "hopeless"


@final
@dataclass(frozen=True, slots=True)
class Expectation:
    """The noise of a run and what it means; ``noise`` is that of one round's mean, as a multiple of the clip.

    ``clients`` is how many there are in all, of whom a cohort takes part in a round.
    """

    noise: float
    dimension: int
    cohort: int
    rounds: int
    clients: int
    trust: Trust

    @property
    def run_noise(self) -> float:
        """rho: what is left of the noise when the rounds are averaged, as a multiple of the clip."""
        return self.noise / math.sqrt(self.rounds)

    @property
    def verdict(self) -> Verdict:
        """Useful, hard or hopeless; a noise that is no number is hopeless."""
        if self.run_noise <= USEFUL_UP_TO:
            return Verdict.USEFUL
        return Verdict.HARD if self.run_noise <= HOPELESS_ABOVE else Verdict.HOPELESS

    @property
    def clients_needed(self) -> float:
        """About how many clients a useful run needs, each taking part as often, in as many rounds."""
        more = self.run_noise / USEFUL_UP_TO
        return self.clients * max(1.0, more if self._once else more**2)

    @property
    def parameters_allowed(self) -> float:
        """About how many parameters a useful run of these clients may have."""
        return self.dimension * (USEFUL_UP_TO / self.run_noise) ** 2 if self.run_noise > 0 else math.inf

    @property
    def _once(self) -> bool:
        """Whether the noise of a mean falls with the cohort, and not with its root only: more clients hide each other."""
        return self.trust is not Trust.LOCAL

    def sentence(self) -> str:
        """The verdict in one sentence, with what would help."""
        many = "" if self.rounds == 1 else f", and {self.run_noise:.2g} times over {self.rounds:,} rounds"
        start = f"{self.verdict.value}: the noise in the mean of {_updates(self.cohort)} is {_times(self.noise)}{many}"
        if self.verdict is Verdict.USEFUL:
            return start + "."
        return f"{start}; {self._help()}."

    def _help(self) -> str:
        least, fewer = about(self.clients_needed), self.parameters_allowed
        small = f"train a head or LoRA of at most {about(fewer)} parameters" if fewer >= 10 else ""
        # Behind masks the noise of a cohort is about that of one client.
        summed = self.run_noise / math.sqrt(self.cohort) if not self._once else math.inf
        aid = "use secure aggregation" if summed <= HOPELESS_ABOVE else ""
        others = [word for word in (small, aid) if word]
        return f"a useful run needs about {least} clients" + (f", or {', or '.join(others)}" if others else "")


def expectation(
    mechanism: Mechanism,
    *,
    cohort: int,
    rounds: int = 1,
    clients: int | None = None,
    trust: Trust | str = Trust.LOCAL,
) -> Expectation:
    """What to expect of ``rounds`` rounds in which ``cohort`` clients send updates through this mechanism.

    Args:
        mechanism: calibrated for what a client may spend in all its releases.
        cohort: clients in a round.
        rounds: of the run.
        clients: how many there are in all; the cohort unless said.
        trust: who may look. Under ``central`` trust the mechanism's noise is added once, to the sum.
    """
    many, times = whole_number(cohort, "cohort", 1), whole_number(rounds, "rounds", 1)
    crowd = whole_number(many if clients is None else clients, "clients", 1)
    require(crowd >= many, "clients", crowd, f"at least {many}, the cohort")
    which, ball = member(Trust, trust, "trust"), mechanism.domain
    error = mechanism.error().squared
    shared = float(getattr(mechanism, "shared_error", 0.0))  # of rows that all clients of a round keep
    squared = error / many**2 if which is Trust.CENTRAL else (error - shared) / many + shared
    return Expectation(math.sqrt(ball.dimension * squared) / ball.radius, ball.dimension, many, times, crowd, which)


def about(number: float) -> str:
    """A number for people, to two digits.

    >>> about(4_210_000), about(19_730), about(12), about(3.2e13)
    ('4.2 million', '20,000', '12', '32 trillion')
    """
    if not number < 1e15:
        return "more than 1000 trillion"
    rough = float(f"{number:.2g}")
    for size, word in WORDS:
        if rough >= size:
            return f"{rough / size:g} {word}"
    return f"{math.ceil(rough):,}"


def _updates(cohort: int) -> str:
    return "one update" if cohort == 1 else f"{cohort:,} updates"


def _times(noise: float) -> str:
    return f"{float(f'{noise:.2g}'):,g} times the clip"
