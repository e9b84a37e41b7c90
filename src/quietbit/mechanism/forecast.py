"""What to expect of a run before it starts: its noise relative to the updates, and a verdict.

Idea     a server sees the mean of a cohort plus noise. The length of the noise is given as a
         multiple of the clip, the largest norm of a mean of updates. Over a run the noise of the
         rounds averages out and what clients agree on does not, so a run is judged by the noise of
         a round over the root of the number of rounds.
Symbols  d = dimension; m = cohort; T = rounds; e = squared error of a decoded coordinate, in clips.
         nu = noise of a round's mean, in clips: sqrt(d e / m); sqrt(d e) / m where noise is added
         once, to the sum. rho = nu / sqrt(T).
Source   docs/how-to/choose.md; thresholds: benchmarks/expectations.py,
         benchmarks/README.md.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import final

from attrs import frozen

from quietbit.errors import check_int, require
from quietbit.mechanism.abilities import Batches
from quietbit.mechanism.base import Mechanism, check_mechanism
from quietbit.target import Trust

__all__ = [
    "HOPELESS_ABOVE",
    "NOISY_UP_TO",
    "USEFUL_UP_TO",
    "Forecast",
    "Verdict",
    "about",
    "forecast",
]

USEFUL_UP_TO = 0.1
NOISY_UP_TO = 0.3
HOPELESS_ABOVE = 3.0
SHORTENED = 0.97  # responses below are mentioned
LEAST_MODEL = 100  # parameters of the smallest part of a model worth suggesting
WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


class Verdict(Enum):
    """The verdict on a run."""

    USEFUL = "useful"
    NOISY = "noisy"
    UNCERTAIN = "uncertain"
    HOPELESS = "hopeless"


@final
@frozen
class Forecast:
    """The noise of one round's mean, in clips, and what it means; ``response`` is `Error`'s."""

    noise: float
    dimension: int
    cohort: int
    rounds: int
    clients: int
    trust: Trust
    response: float = 1.0

    @property
    def run_noise(self) -> float:
        """rho: the noise left after averaging over the rounds, in clips."""
        return self.noise / math.sqrt(self.rounds)

    @property
    def loudness(self) -> float:
        """The noise of the run over the response, which decides the verdict."""
        if self.response > 0:
            return self.run_noise / self.response
        return math.inf

    @property
    def verdict(self) -> Verdict:
        """The verdict: useful, noisy, uncertain or hopeless; a noise of NaN is hopeless."""
        if self.loudness <= USEFUL_UP_TO:
            return Verdict.USEFUL
        if self.loudness <= NOISY_UP_TO:
            return Verdict.NOISY
        return Verdict.UNCERTAIN if self.loudness <= HOPELESS_ABOVE else Verdict.HOPELESS

    @property
    def clients_needed(self) -> float:
        """About how many clients make the run useful, with equal rounds and participation."""
        excess = self.loudness / USEFUL_UP_TO
        if not self._once:
            excess **= 2
        return self.clients * max(1.0, excess)

    @property
    def parameters_allowed(self) -> float:
        """The approximate number of parameters for which a run of these clients is useful."""
        if self.loudness > 0:
            return self.dimension * (USEFUL_UP_TO / self.loudness) ** 2
        return math.inf

    @property
    def _once(self) -> bool:
        """Whether noise is added once per sum: it then falls with the cohort, not with its root."""
        return self.trust is not Trust.LOCAL

    def sentence(self) -> str:
        """Return the verdict in one sentence, and what would help."""
        if self.cohort == 1:  # not a run that could be judged
            text = "the noise in one update is"
        else:
            text = f"{self.verdict.value}: the noise in the mean of {self.cohort:,} updates is"
        text += f" {_short(self.noise)} times the clip"
        if self.rounds > 1:
            text += f", and {_short(self.run_noise)} times over {self.rounds:,} rounds"
        if self.response < SHORTENED:
            text += f" (an update may come out up to {100 * (1 - self.response):.0f} % too short)"
        if self.verdict is Verdict.UNCERTAIN:
            text += ", and what is learnt depends on how much clients agree"
        if self.verdict is not Verdict.USEFUL:
            text += f"; {self._help()}"
        return f"{text}."

    def _help(self) -> str:
        remedies = [f"about {about(self.clients_needed)} clients"]
        if self.parameters_allowed >= LEAST_MODEL:
            limit = about(self.parameters_allowed)
            remedies.append(f"a head or LoRA of at most {limit} parameters")
        # Behind masks the noise of a cohort's sum is about that of one client.
        masked = math.inf
        if self.cohort > 1 and not self._once:
            masked = self.loudness / math.sqrt(self.cohort)
        if masked <= USEFUL_UP_TO:
            remedies.append("secure aggregation")
        text = "a useful run takes " + ", or ".join(remedies)
        if self.verdict is Verdict.HOPELESS and USEFUL_UP_TO < masked <= HOPELESS_ABOVE:
            instead = Verdict.NOISY if masked <= NOISY_UP_TO else Verdict.UNCERTAIN
            text += f" (secure aggregation would make it {instead.value} instead)"
        return text


def forecast(
    mechanism: Mechanism,
    *,
    cohort: int,
    rounds: int = 1,
    clients: int | None = None,
    trust: Trust | str = Trust.LOCAL,
) -> Forecast:
    """Return what to expect of ``rounds`` rounds with updates of ``cohort`` of ``clients`` clients.

    The mechanism is calibrated for all releases of a client; under central trust its noise is added
    once, to the sum. Without ``clients`` the cohort is all of them.
    """
    size = check_int(cohort, "cohort", 1)
    if clients is None:
        clients = size
    crowd = check_int(clients, "clients", 1)
    require(crowd >= size, "clients", crowd, f"at least {size}, the cohort")
    round_count = check_int(rounds, "rounds", 1)
    trust = Trust(trust)
    ball = check_mechanism(mechanism).ball
    error = mechanism.error()
    if trust is Trust.CENTRAL:
        squared = error.squared / size**2
    else:
        squared = error.of_mean(size)
    longest = 1.0
    batches = Batches.find(mechanism)
    if batches is not None:
        longest = batches.longest_update
    noise = math.sqrt(ball.dimension * squared) / longest
    return Forecast(noise, ball.dimension, size, round_count, crowd, trust, error.response)


def about(number: float) -> str:
    """Format a number for people, to two digits.

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


def _short(number: float) -> str:
    return f"{float(f'{number:.2g}'):,g}"
