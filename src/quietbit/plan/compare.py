"""Which mechanism, under which trust: every way to meet a target, with its bytes, its noise and a verdict.

Idea     every family of the registry, sums behind masks, and a trusted server as the yardstick are
         calibrated to the same target, so that each error is that of a real mechanism. A way that
         cannot reach the target says so in one sentence. `expectation` gives the verdict on a run.
Symbols  d = dimension; m = cohort; T = rounds; N = clients; r = T m / N releases of a client.
         noise: length of the noise in the mean of a round, as a multiple of the clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast, final

from quietbit.arrays import Structure
from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_real, require
from quietbit.mechanism.abilities import Rotating, Summable, kept_coordinates
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.calibrate import Calibration, alternatives, calibrate, smallest_of_the_best
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.expectation import Expectation, expectation
from quietbit.mechanism.poison import moved
from quietbit.mechanism.registry import family
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.rotation import fewest_kept
from quietbit.plan.clip import answers_needed, highest_rise
from quietbit.privacy.guarantee import Guarantee
from quietbit.run.parts.evaluation import Evaluation
from quietbit.run.parts.scouts import EVERY, EVERY_OF_SUMS
from quietbit.secagg.plan import masked_size
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit.wire.downlink import HEAD
from quietbit.wire.payload import Header

__all__ = [
    "FLOAT_BYTES",
    "ClipPoint",
    "Comparison",
    "ComparisonRow",
    "bytes_sent",
    "compare",
    "dimension_of",
]

Report = Callable[[float, str], None]
FLOAT_BYTES = 4
CLIPS = (0.25, 0.5, 1.0, 2.0, 4.0)
CENTRAL, SUMMED = "gaussian", "imvu"
OF_SAMPLES = ("gaussian", "imvu")  # families whose price a secret batch lowers
STEPS = 6  # of a clip that begins ten times off
LEAST_KEPT = 64  # with fewer, the second clip shortens long updates too much


@final
@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One way to meet the target; where it cannot, ``refusal`` says why and there are no numbers.

    ``keep`` is the number of coordinates sent where not all are. ``payload_bytes`` is what a client
    sends per round, ``downlink_bytes`` what it receives: the model, or the broadcast where few
    coordinates are kept and shared. ``relative_error`` is the squared error of a round's mean over
    that of Gaussian noise added by every client; None at delta 0. A ``baseline`` is never the best.
    ``moved`` is how far malicious clients can move a mean, in clips.
    """

    name: str
    trust: Trust
    keep: int | None = None
    mechanism: Mechanism | None = None
    guarantee: Guarantee | None = None
    payload_bytes: int = 0
    downlink_bytes: int = 0
    relative_error: float | None = None
    expected: Expectation | None = None
    work: str = ""
    refusal: str = ""
    baseline: bool = False
    moved: float | None = None

    @property
    def noise(self) -> float:
        """The noise in the mean of a round, as a multiple of the clip; infinite where the target is out of reach."""
        return math.inf if self.expected is None else self.expected.noise

    @property
    def verdict(self) -> str:
        """The verdict on a run, or why there is none."""
        return self.refusal if self.expected is None else self.expected.sentence()


@final
@dataclass(frozen=True, slots=True)
class Samples:
    """What a site does where its single samples are protected: ``count`` of them, each in a batch at ``rate``.

    With ``local_steps`` a release is the difference of models after that number of private steps;
    without, every step is sent.
    """

    count: int
    rate: float
    local_steps: int | None

    def keywords(self) -> dict[str, Any]:
        """Return what `calibrate` takes; a step of length 1 makes the noise one in clips."""
        step = (
            {} if self.local_steps is None else {"local_steps": self.local_steps, "local_rate": 1.0}
        )
        return {"samples": self.count, "sampling_rate": self.rate, **step}


@final
@dataclass(frozen=True, slots=True)
class ClipPoint:
    """A clip of ``clip`` times the updates' length: the noise relative to what is left, and the part ``cut`` off."""

    clip: float
    noise: float
    cut: float


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """The request as understood, and one row per way; `compare` has what the fields mean."""

    ball: Ball
    target: Target
    clients: int
    cohort: int
    rounds: int
    min_honest_clients: int | None
    evaluation: Evaluation | None
    summed_evaluation: (
        Evaluation | None
    )  # the same for sums behind masks, on the account that updates share
    baselines: bool
    malicious: float | None
    samples: Samples | None = None
    rows: tuple[ComparisonRow, ...] = ()

    def best(self, trust: Trust | str) -> ComparisonRow | None:
        """Return the row that ``auto`` chooses: within 5 % of the least noise energy, the one that sends least.

        Only ways whose decoded mean is the update count (a sign's is not), and no baselines; None
        where no way reaches the target.
        """
        which = Trust(trust)
        mine = [row for row in self.rows if row.trust is which and not row.baseline]
        known = [
            (row, row.expected)
            for row in mine
            if row.expected is not None
            and row.mechanism is not None
            and not row.mechanism.error().unitless
        ]
        if not known:
            return None
        errors, sizes = (
            [one.loudness**2 for _, one in known],
            [row.payload_bytes for row, _ in known],
        )
        return known[smallest_of_the_best(errors, sizes)][0]

    def bytes_per_client(self, row: ComparisonRow) -> int:
        """Return the bytes that a client sends in all its releases."""
        return row.payload_bytes * self.target.releases

    def bytes_in_all(self, row: ComparisonRow) -> int:
        """Return the bytes that all clients send in all rounds."""
        return row.payload_bytes * self.cohort * self.rounds

    def scouts_help(self, row: ComparisonRow) -> bool:
        """Return whether ``clip = auto`` can correct a start ten times off: enough answers, and noise that permits it.

        An answer is taken to be as true as its even share of epsilon makes it, which is less than a
        plan finds.
        """
        if (
            row.expected is None
            or row.trust is Trust.CENTRAL
            or self.target.unit is not Unit.CLIENT
        ):
            return False
        each = self.target.epsilon / self.target.releases
        truth = RandomisedResponse.within(each, 2, self.target.adjacency).truth
        every = EVERY_OF_SUMS if row.trust is Trust.SECURE_AGGREGATION else EVERY
        answers = self.cohort * self.rounds / every
        return answers >= STEPS * answers_needed(truth) and highest_rise(row.noise) > 1

    def clip_points(self, row: ComparisonRow) -> tuple[ClipPoint, ...]:
        """Return the noise of a round's mean for several ratios of clip to update length."""
        return tuple(
            ClipPoint(clip, row.noise * max(clip, 1.0), max(0.0, 1.0 - clip)) for clip in CLIPS
        )


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
    clip: float | None = None,
    norm: Norm | str | None = None,
    min_honest_clients: int | None = None,
    baselines: bool = False,
    evaluate: float | None = None,
    malicious: float | None = None,
    report: Report | None = None,
) -> Comparison:
    """Calibrate every mechanism and trust model that applies to the same target.

    Args:
        model: the number of parameters of an update: a number, a `Ball` (which sets the clip and
            norm too), a torch module (what it trains), or arrays in dicts, lists and tuples such as
            a ``state_dict``.
        epsilon: the budget of all releases of one client together.
        delta: of that epsilon.
        adjacency: which two data sets are neighbours.
        cohort: clients per round.
        clients: how many there are in all; the cohort by default.
        rounds: of the run; then a client sends ``ceil(rounds * cohort / clients)`` updates. Or
        releases: how often a client takes part; then there are ``clients * releases / cohort``
            rounds. One of the two.
        trust: local, central or secure-aggregation; all of them by default.
        unit: whose data an epsilon protects: all that a ``client`` has, or one ``sample`` of a site
            that has many, such as a patient of a hospital; then the server sees every site's
            releases, and
        samples: about how many samples a site has,
        sampling_rate: the probability of each to be in the secret batch of a step; 1 by default,
        local_steps: private steps of a site per release; by default every step is sent.
        clip: largest norm of an update; 1 by default. Rows depend on it only through the
            mechanisms.
        norm: l2 by default; sums behind masks support l2 alone.
        min_honest_clients: for secure aggregation, how many of a cohort answer and do not collude;
            all by default.
        baselines: include mechanisms that are for comparison only.
        evaluate: epsilon of one answer to a private evaluation, one per release. Rows have what is
            left of epsilon, those of sums what is left on the account that updates and summed
            answers share.
        malicious: the share of clients that send arbitrary payloads; rows then show how far they
            move a mean.
        report: ``report(fraction, message)`` is called with the progress.

    >>> found = compare(1_000, epsilon=4.0, delta=0.0, adjacency="replace-one", clients=10_000, cohort=1_000,
    ...                 releases=1, trust="local")
    >>> found.best("local").name, found.best("local").expected.verdict.value
    ('vmvu', 'hard')
    """
    ball = _ball(model, clip, norm)
    which = None if trust is None else Trust(trust)
    known = [way.value for way in WAYS]
    require(which is None or which in WAYS, "trust", trust, "one of " + ", ".join(known))
    many = check_int(cohort, "cohort", 1)
    crowd = check_int(many if clients is None else clients, "clients", 1)
    require(crowd >= many, "clients", crowd, f"at least {many}, the cohort")
    times, often = _schedule(rounds, releases, crowd, many)
    sites = _samples(unit, samples, sampling_rate, local_steps)
    if sites is not None:
        require(which in (None, Trust.LOCAL), "trust", trust, "local where samples are protected")
        which = Trust.LOCAL
    target = Target(epsilon, delta, adjacency, unit=Unit(unit), releases=often).limited()
    answers = summed = None
    if evaluate is not None and which is not Trust.SECURE_AGGREGATION:
        answers = Evaluation(evaluate, releases=often, adjacency=target.adjacency, unit=target.unit)
    if (
        evaluate is not None
        and which in (None, Trust.SECURE_AGGREGATION)
        and target.delta > 0
        and many > 1
    ):
        honest = min_honest_clients or many
        summed = Evaluation(
            evaluate, releases=often, adjacency=target.adjacency, delta=target.delta, honest=honest
        )
    asked = Comparison(
        ball,
        target,
        crowd,
        many,
        times,
        min_honest_clients,
        answers,
        summed,
        baselines,
        malicious,
        sites,
    )
    tell = report or (lambda fraction, message: None)
    if sites is not None:
        return replace(asked, rows=tuple(_of_samples(asked, sites, tell)))
    rows = [
        row for way, found in WAYS.items() if which in (None, way) for row in found(asked, tell)
    ]
    return replace(asked, rows=tuple(rows))


def dimension_of(model: Any) -> int:
    """Return the number of parameters of an update: of a number, what a torch module trains, or a tree of arrays.

    >>> import numpy as np
    >>> dimension_of({"weight": np.zeros((3, 4)), "bias": np.zeros(3)}), dimension_of(10)
    (15, 10)
    """
    if isinstance(model, int) and not isinstance(model, bool):
        return model
    parameters = getattr(model, "parameters", None)
    if callable(parameters):
        return sum(int(one.numel()) for one in parameters() if one.requires_grad)
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
        return masked_size(cohort, layout.count, 2**layout.bits - 1)
    return Header.of(mechanism).size


def _left(asked: Comparison) -> Target:
    """Return the target of updates, beside which answers that the server sees are accounted by themselves."""
    return (
        asked.target if asked.evaluation is None else asked.target.without(asked.evaluation.spends)
    )


def _gaussian(ball: Ball, target: Target) -> tuple[Calibration | None, str]:
    """Return one client's Gaussian release at the target, the yardstick of errors; or why there is none."""
    try:
        return calibrate(
            CENTRAL, ball=Ball(Norm.L2, ball.radius, ball.dimension), **target.keywords()
        ), ""
    except QuietbitError as error:
        return None, str(error)


def _row(
    asked: Comparison,
    name: str,
    trust: Trust,
    mechanism: Mechanism,
    guarantee: Guarantee,
    gaussian: Calibration | None,
) -> ComparisonRow:
    ball, cohort = asked.ball, asked.cohort
    expected = expectation(
        mechanism, cohort=cohort, rounds=asked.rounds, clients=asked.clients, trust=trust
    )
    squared = (expected.noise * ball.radius) ** 2 / ball.dimension  # per coordinate of the mean
    model = FLOAT_BYTES * ball.dimension
    coordinates = kept_coordinates(mechanism)
    kept = coordinates if coordinates < ball.dimension else None
    return ComparisonRow(
        name=name,
        trust=trust,
        keep=kept,
        mechanism=mechanism,
        guarantee=guarantee,
        payload_bytes=bytes_sent(mechanism, trust, cohort),
        downlink_bytes=model if kept is None else min(model, HEAD.size + FLOAT_BYTES * kept),
        relative_error=None if gaussian is None else squared * cohort / gaussian.squared_error,
        expected=expected,
        work=_work(name, trust, mechanism),
        moved=None if asked.malicious is None else moved(mechanism, asked.malicious, trust),
    )


def _local(asked: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return a row per family, and one with few coordinates kept where that sends less."""
    rows, target = [], _left(asked)
    gaussian, _ = _gaussian(asked.ball, target)
    for way in alternatives(
        asked.ball,
        target,
        baselines=asked.baselines,
        report=lambda share, word: tell(0.7 * share, word),
    ):
        found = way.calibration
        if found is None:
            if way.keep is None:  # report a refusal once
                rows.append(
                    ComparisonRow(
                        way.mechanism, Trust.LOCAL, refusal=way.refusal, baseline=way.baseline
                    )
                )
            continue
        row = _row(asked, way.mechanism, Trust.LOCAL, found.mechanism, found.guarantee, gaussian)
        if way.keep is None or row.keep is not None:
            rows.append(replace(row, baseline=way.baseline))
    return rows


def _samples(
    unit: Unit | str, samples: int | None, sampling_rate: float | None, local_steps: int | None
) -> Samples | None:
    """Return what sites do where samples are protected; refuse their numbers where clients are."""
    if Unit(unit) is Unit.SAMPLE:
        if samples is None:
            raise InvalidParameter.of(
                "samples", "given where samples are protected: about how many a site has"
            )
        steps = None if local_steps is None else check_int(local_steps, "local_steps", 1)
        rate = (
            1.0
            if sampling_rate is None
            else check_real(sampling_rate, "sampling_rate", at_most=1.0)
        )
        return Samples(check_int(samples, "samples", 1), rate, steps)
    for name, value in (
        ("samples", samples),
        ("sampling_rate", sampling_rate),
        ("local_steps", local_steps),
    ):
        require(value is None, name, value, "left out unless unit is sample")
    return None


def _of_samples(asked: Comparison, sites: Samples, tell: Report) -> list[ComparisonRow]:
    """Return a row per family that has a price for a sample of a secret batch; errors are relative to the first."""
    rows: list[ComparisonRow] = []
    target = _left(asked)
    for place, name in enumerate(OF_SAMPLES):
        tell(place / len(OF_SAMPLES), name)
        try:
            found = calibrate(name, ball=asked.ball, **target.keywords(), **sites.keywords())
        except QuietbitError as error:
            rows.append(ComparisonRow(name, Trust.LOCAL, refusal=str(error)))
            continue
        row = _row(asked, name, Trust.LOCAL, found.mechanism, found.guarantee, None)
        yardstick = rows[0] if rows else row
        if yardstick.expected is not None:
            row = replace(row, relative_error=(row.noise / yardstick.noise) ** 2)
        rows.append(row)
    return rows


def _summed(asked: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return the row of one-bit codes behind masks, and one with few coordinates kept where that sends less."""
    ball, target, answers = asked.ball, asked.target, asked.summed_evaluation

    def together(mechanism: Mechanism) -> Guarantee:
        """Account for all sums of a client, answers included."""
        ((answer, times),) = cast(Evaluation, answers).shared()
        updates = Summable.of(mechanism).sum_privacy(
            cast(int, cast(Evaluation, answers).honest), target.adjacency
        )
        return (updates * target.releases + answer * times).guarantee(target.delta)

    common = {
        **target.keywords(),
        "clients": asked.cohort,
        "min_honest_clients": asked.min_honest_clients,
    }
    common["account"] = None if answers is None else together
    tell(0.7, "sums")
    try:
        require(
            ball.norm is Norm.L2, "norm of the ball", ball.norm.value, "l2 for sums behind masks"
        )
        ways = [calibrate_sum(ball=ball, **common)]
    except QuietbitError as error:
        return [ComparisonRow(SUMMED, Trust.SECURE_AGGREGATION, refusal=str(error))]
    keep = max(LEAST_KEPT, fewest_kept(ways[0].squared_error / ball.radius**2, ball.dimension))
    if keep <= ball.dimension // 2:
        tell(0.85, "sums of kept coordinates")
        ways.append(calibrate_sum(ball=ball, keep=keep, **common))
    gaussian, _ = _gaussian(ball, target)
    return [
        _row(asked, SUMMED, Trust.SECURE_AGGREGATION, found.mechanism, found.guarantee, gaussian)
        for found in ways
    ]


def _central(asked: Comparison, tell: Report) -> list[ComparisonRow]:
    """Return the yardstick: a trusted server adds noise once, to the sum of the updates."""
    target = _left(asked)
    found, refusal = _gaussian(asked.ball, target)
    if found is None:
        return [ComparisonRow(CENTRAL, Trust.CENTRAL, refusal=refusal)]
    cost = (found.mechanism.privacy(target.adjacency) * target.releases).under(trust=Trust.CENTRAL)
    guarantee: Guarantee = cost.guarantee(target.delta)
    return [_row(asked, CENTRAL, Trust.CENTRAL, found.mechanism, guarantee, found)]


WAYS: dict[Trust, Callable[[Comparison, Report], list[ComparisonRow]]] = {
    Trust.LOCAL: _local,
    Trust.SECURE_AGGREGATION: _summed,
    Trust.CENTRAL: _central,
}


def _ball(model: Any, clip: float | None, norm: Norm | str | None) -> Ball:
    if isinstance(model, Ball):
        for name, value in (("clip", clip), ("norm", norm)):
            require(value is None, name, value, "left out beside a Ball, which has one")
        return model
    which = Norm.L2 if norm is None else Norm(norm)
    return Ball(which, 1.0 if clip is None else check_real(clip, "clip"), dimension_of(model))


def _schedule(
    rounds: int | None, releases: int | None, clients: int, cohort: int
) -> tuple[int, int]:
    """Return the rounds, and the releases of the client that takes part most often when clients take turns."""
    if (rounds is None) == (releases is None):
        raise InvalidParameter(
            "rounds or releases must be given, and not both: each follows from the other."
        )
    if rounds is not None:
        times = check_int(rounds, "rounds", 1)
        return times, -(-times * cohort // clients)
    often = check_int(releases, "releases", 1)
    return max(1, clients * often // cohort), often


def _work(name: str, trust: Trust, mechanism: Mechanism) -> str:
    """Describe what a client computes beside its update; empty for a family that does not say."""
    if trust is Trust.CENTRAL:
        return "nothing, for the server adds the noise"
    own = family(name).work or "not said"
    rotating = Rotating.nearest(mechanism)
    if rotating is not None and rotating.prepares:
        own = f"{rotating.prepares}, then {own}"
    return f"{own}, and masks" if trust is Trust.SECURE_AGGREGATION else own
