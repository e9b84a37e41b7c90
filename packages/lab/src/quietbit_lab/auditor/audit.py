"""The auditor: tests whether the shipped sampler keeps its claims.

Idea     send known updates many times over the real path, `send` and then `receive`, and look for
         deviations from the claim in three ways: an empirical lower bound on epsilon, which needs
         only two neighbours; means and variances against the claimed ones; correlations between
         coordinates and between releases, which should be zero. Half of the doubt (1 - confidence)
         goes to the lower bound and half to the checks. A pass is not a proof; `Audit.detectable`
         gives the fault that would have been found.
Source   `ratio.py` and `checks.py` name theirs.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast, final

from attrs import frozen

from quietbit._search import bisect
from quietbit._typing import FloatVector
from quietbit.errors import check_int, check_real
from quietbit.kernel.rng import RandomBits, check_rng, secure_rng
from quietbit.mechanism.abilities import SharedRows
from quietbit.mechanism.base import Mechanism
from quietbit.privacy.conversion import gaussian_epsilon_upper, gaussian_log_delta
from quietbit.privacy.guarantee import shown_epsilon
from quietbit.target import Adjacency, check_delta
from quietbit.wire.uplink import Uplink
from quietbit_lab.auditor.checks import Finding, check_all, detectable_gain
from quietbit_lab.auditor.ratio import detectable_lower, measurable, ratio_lower
from quietbit_lab.auditor.releases import Path, Progress, Record, release

__all__ = ["Audit", "audit"]


@final
@frozen
class Audit:
    """The findings, beside what is claimed for one release at the same delta and adjacency.

    With probability ``confidence`` over the random bits drawn, the true epsilon is at least
    ``epsilon_lower``, and no finding fails for a sampler that follows its claim. ``detectable``: a
    sampler whose response is too strong, so that its epsilon exceeds the claim by at least this
    much, would have been found with probability 0.9. ``measurable``: the largest lower bound on
    epsilon that the samples can give, whatever the sampler does.
    """

    epsilon_lower: float
    epsilon_upper: float
    delta: float
    adjacency: Adjacency
    confidence: float
    samples: int
    detectable: float
    measurable: float
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was found against the sampler; ``verdict`` says how much that means."""
        return self.epsilon_lower <= self.epsilon_upper and all(
            finding.passed for finding in self.findings
        )

    @property
    def verdict(self) -> Literal["passed", "failed", "inconclusive"]:
        """The verdict; inconclusive where the samples cannot show an epsilon of twice the claim."""
        if not self.passed:
            return "failed"
        seen = self.epsilon_upper < self.measurable and self.detectable <= self.epsilon_upper
        return "passed" if seen else "inconclusive"

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence per fault found."""
        failures = [
            f"{finding.name}: {finding.detail}" for finding in self.findings if not finding.passed
        ]
        if not self.epsilon_lower <= self.epsilon_upper:
            failures.insert(
                0,
                f"epsilon: at least {self.epsilon_lower:.4g}, "
                f"where {shown_epsilon(self.epsilon_upper)} is claimed",
            )
        return tuple(failures)


def audit(
    target: Mechanism | Path,
    adjacency: Adjacency | str,
    *,
    rng: RandomBits | None = None,
    delta: float = 1e-5,
    samples: int = 4000,
    confidence: float = 1 - 1e-6,
    progress: Progress | None = None,
) -> Audit:
    """Audit one release of a mechanism, or of an uplink, by sending known updates over it.

    ``samples`` is how often each of the main updates is sent: zero, one coordinate at the boundary,
    all coordinates at once, with either sign, and one outside the ball; fourteen others in between
    are sent a quarter as often. Random bits are the operating system's by default. ``progress`` is
    called with a fraction and the current step.
    """
    adjacency = Adjacency(adjacency)
    delta = check_delta(delta)
    path = _path(target)
    source = secure_rng() if rng is None else rng
    check_rng(source)
    count = check_int(samples, "samples", 100)
    sure = check_real(confidence, "confidence", at_least=0.5, at_most=1 - 1e-12)
    claim = path.mechanism.privacy(adjacency).epsilon(delta)
    seen = release(path, source, count, progress or (lambda fraction, message: None))
    half = (1 - sure) / 2
    statistics = _pairs(seen.inside, adjacency)
    doubt = half / (2 * len(statistics))
    epsilon_lower = max(ratio_lower(first, second, delta, doubt) for first, second in statistics)
    excess = _excess(claim, detectable_gain(seen, half), delta)
    excess = min(excess, detectable_lower(count, claim, delta, doubt) - claim)
    most = measurable(count, delta, doubt)
    findings = check_all(seen, half)
    return Audit(
        max(epsilon_lower, 0.0), claim, delta, adjacency, sure, count, excess, most, findings
    )


def _path(target: Any) -> Path:
    """Return the path to audit: the mechanism on flat vectors, so that no dtype rounds means."""
    if not isinstance(target, Uplink):
        if all(hasattr(target, name) for name in ("mechanism", "send", "receive")):
            return cast(Path, target)
        target = Uplink(target)
    uplink = Uplink(target.mechanism, threads=target.threads)
    if SharedRows.find(uplink.mechanism) is not None:
        return _Rounds(uplink)
    return uplink


@final
class _Rounds:
    """The path of a mechanism with shared rows: each release is of its own round.

    Bodies travel without their header: it names the rows, and would hide that a body repeats an
    earlier one.
    """

    def __init__(self, uplink: Uplink) -> None:
        self.mechanism = uplink.mechanism
        self._uplink = uplink
        self._number = 0
        self._header = b""

    def send(self, update: Any, rng: Any) -> bytes:
        self._number += 1
        self._uplink = Uplink(
            self.mechanism.for_round(b"audit", self._number), threads=self._uplink.threads
        )
        payload = self._uplink.send(update, rng)
        first = len(payload) - self.mechanism.layout.size
        self._header = payload[:first]
        return payload[first:]

    def receive(self, payloads: Any) -> Any:
        return self._uplink.receive([self._header + body for body in payloads])


def _pairs(records: list[Record], adjacency: Adjacency) -> list[tuple[FloatVector, FloatVector]]:
    """Return statistics of neighbouring updates, along the first coordinate and their sum."""
    named = {record.name: record for record in records}
    pairs = []
    for name, along in (("one coordinate", "heads"), ("every coordinate", "totals")):
        if name in named:
            zero, plus, minus = (
                getattr(named[label], along) for label in ("zero", name, f"{name}, negative")
            )
            pairs += (
                [(plus, minus)]
                if adjacency is Adjacency.REPLACE_ONE
                else [(plus, zero), (minus, zero)]
            )
    return pairs


def _excess(claim: float, gain: float, delta: float) -> float:
    """Return by how much a response ``gain`` times as strong exceeds the claimed epsilon."""
    if not (0 < claim < math.inf and gain < math.inf):
        return math.inf
    if delta == 0:
        return (gain - 1) * claim
    high = 2.0
    while gaussian_log_delta(claim, high) < math.log(delta):
        high *= 2
    high = bisect(
        lambda mu: gaussian_log_delta(claim, mu) >= math.log(delta), high, 0.0, halvings=80
    )
    return max(gaussian_epsilon_upper((gain * high) ** 2 / 2, delta) - claim, 0.0)
