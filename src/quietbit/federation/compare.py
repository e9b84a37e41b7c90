"""Which mechanism, under which trust: every way to meet a target, with bytes, noise, a verdict.

Idea     every family of the registry, sums behind masks, and a trusted server as the yardstick are
         calibrated to the same target, so that each error is that of a real mechanism. A way that
         cannot reach the target says so in one sentence. `forecast` gives the verdict on a run.
Symbols  d = dimension; m = cohort; T = rounds; N = clients; r = T m / N releases of a client.
         noise: length of the noise in the mean of a round, as a multiple of the clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from attrs import evolve

from quietbit.arrays import Structure
from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_real, require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import Calibration, alternatives, calibrate, smallest_of_the_best
from quietbit.mechanism.forecast import Forecast, forecast
from quietbit.mechanism.rotation import fewest_kept
from quietbit.privacy.guarantee import Guarantee
from quietbit.secagg.plan import masked_size
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit.wire.payload import Header

__all__ = [
    "FLOAT_BYTES",
    "Comparison",
    "ComparisonRow",
    "bytes_sent",
    "compare",
    "dimension_of",
]

Report = Callable[[float, str], None]
FLOAT_BYTES = 4
CENTRAL = "gaussian"
SUMMED = "imvu"
OF_SAMPLES = ("gaussian", "imvu")  # families whose cost a secret batch lowers
LEAST_KEPT = 64  # with fewer, the second clip shortens long updates too much


@final
@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One way to meet the target; where it cannot, ``refusal`` says why and there are no numbers.

    Args:
        name: of the mechanism's family.
        trust: who sees what.
        coordinates: the number of coordinates sent, where not all are.
        mechanism: calibrated to the target.
        guarantee: of all releases of one client.
        payload_bytes: what a client sends per round.
        expected: what to expect of a run.
        refusal: why the target is out of reach.
    """

    name: str
    trust: Trust
    coordinates: int | None = None
    mechanism: Mechanism | None = None
    guarantee: Guarantee | None = None
    payload_bytes: int = 0
    expected: Forecast | None = None
    refusal: str = ""

    @property
    def noise(self) -> float:
        """The noise in the mean of a round, in clips; infinite where the target is out of reach."""
        if self.expected is None:
            return math.inf
        return self.expected.noise

    @property
    def verdict(self) -> str:
        """The verdict on a run, or why there is none."""
        if self.expected is None:
            return self.refusal
        return self.expected.sentence()


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """The request as understood, and one row per way; `compare` has what the fields mean."""

    ball: Ball
    target: Target
    clients: int
    cohort: int
    rounds: int
    min_honest_clients: int | None = None
    samples: int | None = None
    rows: tuple[ComparisonRow, ...] = ()

    def best(self, trust: Trust | str) -> ComparisonRow | None:
        """Return the row that ``auto`` chooses; None where no way reaches the target.

        It is the one that sends least within 5 % of the least noise energy. Only ways whose decoded
        mean is the update count (a sign's is not).
        """
        trust = Trust(trust)
        rows = []
        errors = []
        for row in self.rows:
            if row.trust is not trust or row.expected is None or row.mechanism is None:
                continue
            if not row.mechanism.unitless:
                rows.append(row)
                errors.append(row.expected.loudness**2)
        if not rows:
            return None
        return rows[smallest_of_the_best(errors, [row.payload_bytes for row in rows])]


def compare(
    model: Any,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    cohort: int,
    clients: int | None = None,
    rounds: int | None = None,
    releases: int | None = None,
    trust: Trust | str | None = None,
    unit: Unit | str = Unit.CLIENT,
    samples: int | None = None,
    sampling_rate: float | None = None,
    local_steps: int | None = None,
    norm: Norm | str | None = None,
    min_honest_clients: int | None = None,
    report: Report | None = None,
) -> Comparison:
    """Calibrate every mechanism and trust model that applies to the same target.

    Args:
        model: the number of parameters of an update: a number, a `Ball` (which sets the norm,
            too), a torch module (what it trains), or arrays in dicts, lists and tuples such as
            a ``state_dict``.
        epsilon: the budget of all releases of one client together.
        delta: of that epsilon.
        adjacency: which two data sets are neighbours.
        cohort: clients per round.
        clients: how many there are in all; the cohort by default.
        rounds: of the run; then a client sends ``ceil(rounds * cohort / clients)`` updates.
        releases: how often a client takes part, instead of ``rounds``; then there are ``clients *
            releases / cohort`` rounds.
        trust: local, central or secure-aggregation; all of them by default.
        unit: whose data an epsilon protects: all that a ``client`` has, or one ``sample`` of a site
            that has many, such as a patient of a hospital; then the server sees every site's
            releases.
        samples: about how many samples a site has, where ``unit`` is sample.
        sampling_rate: the probability of each to be in the secret batch of a step; 1 by default.
        local_steps: private steps of a site per release; by default every step is sent.
        norm: l2 by default; sums behind masks support l2 alone.
        min_honest_clients: for secure aggregation, how many of a cohort answer and do not collude;
            all by default.
        report: ``report(fraction, message)`` is called with the progress.

    >>> comparison = compare(
    ...     1_000, epsilon=4.0, delta=0.0, adjacency="replace-one",
    ...     clients=10_000, cohort=1_000, releases=1, trust="local",
    ... )
    >>> best = comparison.best("local")
    >>> best.name, best.expected.verdict.value
    ('vmvu', 'noisy')
    """
    cohort = check_int(cohort, "cohort", 1)
    clients = check_int(cohort if clients is None else clients, "clients", 1)
    require(clients >= cohort, "clients", clients, f"at least {cohort}, the cohort")
    if (rounds is None) == (releases is None):
        rule = "given, and only one of them"
        remedy = "give one; the other follows from it"
        raise InvalidParameter.of("rounds or releases", rule, (rounds, releases), remedy)
    if rounds is not None:
        rounds = check_int(rounds, "rounds", 1)
        releases = -(-rounds * cohort // clients)  # rounded up: of the client with the most
    else:
        releases = check_int(releases, "releases", 1)
        rounds = max(1, clients * releases // cohort)
    target = Target(epsilon, delta, adjacency, unit=Unit(unit), releases=releases).limited()
    if min_honest_clients is not None:
        check_int(min_honest_clients, "min_honest_clients", 2, cohort)
    ball = _ball(model, norm)
    request = Comparison(ball, target, clients, cohort, rounds, min_honest_clients, samples)
    tell = report or _say_nothing
    ways = list(WAYS)
    if trust is not None:
        names = ", ".join(way.value for way in WAYS)
        require(Trust(trust) in WAYS, "trust", trust, f"one of {names}")
        ways = [Trust(trust)]
    sites = {"samples": samples, "sampling_rate": sampling_rate, "local_steps": local_steps}
    if target.unit is Unit.CLIENT:
        for name, value in sites.items():
            require(value is None, name, value, "left out unless unit is sample")
        rows = [row for way in ways for row in WAYS[way](request, tell)]
    else:
        local = Trust.LOCAL in ways
        require(local, "trust", trust, "local where samples are protected")
        rows = _of_samples(request, _checked(sites), tell)
    return replace(request, rows=tuple(rows))


def _say_nothing(_fraction: float, _message: str) -> None:
    """Report no progress."""


def dimension_of(model: Any) -> int:
    """Return the number of parameters of an update.

    ``model`` is that number, a torch module, of which what it trains counts, or a tree of arrays.

    >>> import numpy as np
    >>> dimension_of({"weight": np.zeros((3, 4)), "bias": np.zeros(3)}), dimension_of(10)
    (15, 10)
    """
    if isinstance(model, int) and not isinstance(model, bool):
        return model
    parameters = getattr(model, "parameters", None)
    if callable(parameters):
        trained = (parameter for parameter in parameters() if parameter.requires_grad)
        return sum(int(parameter.numel()) for parameter in trained)
    return Structure.of(model).size


def bytes_sent(mechanism: Mechanism, trust: Trust, cohort: int) -> int:
    """Return the bytes of one client's update under this trust, in a round of ``cohort`` clients.

    A payload is a header and a body. Behind masks a code is as wide as the largest sum; keys and
    shares, which do not grow with the update, are not counted. A trusted server gets 32-bit floats.
    """
    if trust is Trust.CENTRAL:
        return FLOAT_BYTES * mechanism.ball.dimension
    if trust is Trust.SECURE_AGGREGATION:
        layout = mechanism.layout
        return masked_size(cohort, layout.count)
    return Header.of(mechanism).size


def _row(request: Comparison, name: str, trust: Trust, calibration: Calibration) -> ComparisonRow:
    """Return the row of a calibrated mechanism."""
    mechanism = calibration.mechanism
    expected = forecast(
        mechanism,
        cohort=request.cohort,
        rounds=request.rounds,
        clients=request.clients,
        trust=trust,
    )
    kept = mechanism.kept
    return ComparisonRow(
        name=name,
        trust=trust,
        coordinates=kept if kept < request.ball.dimension else None,
        mechanism=mechanism,
        guarantee=calibration.guarantee,
        payload_bytes=bytes_sent(mechanism, trust, request.cohort),
        expected=expected,
    )


def _local(request: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return a row per family, and one with few coordinates kept where that sends less."""

    def tell_share(fraction: float, message: str) -> None:
        tell(0.7 * fraction, message)

    rows = []
    for way in alternatives(request.ball, request.target, report=tell_share):
        if way.calibration is not None:
            row = _row(request, way.mechanism, Trust.LOCAL, way.calibration)
            if way.coordinates is None or row.coordinates is not None:
                rows.append(row)
        elif way.coordinates is None:  # report a refusal once
            rows.append(ComparisonRow(way.mechanism, Trust.LOCAL, refusal=way.refusal))
    return rows


def _checked(sites: dict[str, Any]) -> dict[str, Any]:
    """Return what `calibrate` takes where samples are protected.

    A step of length 1 makes the noise of local steps one in clips.
    """
    remedy = "say about how many samples a site has"
    require(sites["samples"] is not None, "samples", None, "given for unit sample", remedy)
    keywords = {"samples": check_int(sites["samples"], "samples", 1), "sampling_rate": 1.0}
    if sites["sampling_rate"] is not None:
        keywords["sampling_rate"] = check_real(sites["sampling_rate"], "sampling_rate", at_most=1)
    if sites["local_steps"] is not None:
        keywords["local_steps"] = check_int(sites["local_steps"], "local_steps", 1)
        keywords["local_rate"] = 1.0
    return keywords


def _of_samples(request: Comparison, sites: dict[str, Any], tell: Report) -> list[ComparisonRow]:
    """Return a row per family that has a cost for a sample of a secret batch."""
    rows = []
    target = request.target
    for place, name in enumerate(OF_SAMPLES):
        tell(place / len(OF_SAMPLES), name)
        try:
            calibration = calibrate(name, ball=request.ball, **target.keywords(), **sites)
        except QuietbitError as error:
            rows.append(ComparisonRow(name, Trust.LOCAL, refusal=str(error)))
        else:
            rows.append(_row(request, name, Trust.LOCAL, calibration))
    return rows


def _summed(request: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return the row of one-bit codes behind masks, and one with few coordinates kept.

    The second is there where it sends less.
    """
    ball = request.ball
    target = request.target
    settings: dict[str, Any] = {
        **target.keywords(),
        "honest": request.min_honest_clients or request.cohort,
    }
    tell(0.7, "sums")
    try:
        l2 = ball.norm is Norm.L2
        require(l2, "norm of the ball", ball.norm.value, "l2 for sums behind masks")
        calibrations = [calibrate("imvu", ball=ball, **settings)]
    except QuietbitError as error:
        return [ComparisonRow(SUMMED, Trust.SECURE_AGGREGATION, refusal=str(error))]
    dense = calibrations[0].error.of_mean(request.cohort)
    coordinates = max(LEAST_KEPT, fewest_kept(dense, ball.dimension))
    if coordinates <= ball.dimension // 2:
        tell(0.85, "sums of kept coordinates")
        calibrations.append(calibrate("imvu", ball=ball, coordinates=coordinates, **settings))
    return [
        _row(request, SUMMED, Trust.SECURE_AGGREGATION, calibration) for calibration in calibrations
    ]


def _central(request: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return the yardstick: a trusted server adds noise once, to the sum of the updates."""
    target = request.target
    ball = evolve(request.ball, norm=Norm.L2)
    try:
        calibration = calibrate(CENTRAL, ball=ball, **target.keywords())
    except QuietbitError as error:
        return [ComparisonRow(CENTRAL, Trust.CENTRAL, refusal=str(error))]
    cost = calibration.mechanism.privacy(target.adjacency) * target.releases
    guarantee = cost.under(trust=Trust.CENTRAL).guarantee(target.delta)
    row = _row(request, CENTRAL, Trust.CENTRAL, calibration)
    return [replace(row, guarantee=guarantee)]


WAYS: dict[Trust, Callable[[Comparison, Report], list[ComparisonRow]]] = {
    Trust.LOCAL: _local,
    Trust.SECURE_AGGREGATION: _summed,
    Trust.CENTRAL: _central,
}


def _ball(model: Any, norm: Norm | str | None) -> Ball:
    """Return the ball of updates; refuse a norm beside a Ball, which has its own."""
    if isinstance(model, Ball):
        require(norm is None, "norm", norm, "left out beside a Ball, which has one")
        return model
    norm = Norm.L2 if norm is None else Norm(norm)
    return Ball(norm, dimension_of(model))
