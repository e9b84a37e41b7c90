"""The rules of a plan: known words, numbers in range, and no choice without effect.

Idea     a choice without effect is refused, so that no record claims a number that was not used. First each field is
         read by itself, as its declaration says; then what is left out and follows from other choices is filled in;
         then each rule says of one field whether it is as it must be beside the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import attrs

from quietbit.design.closed_form import MOST_BINOMIAL_BITS
from quietbit.errors import InvalidParameter, check_int, check_known, require
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.calibrate import AUTO
from quietbit.mechanism.family import OWN, Choices
from quietbit.mechanism.registry import families, family, importable
from quietbit.plan.clip import RATE, MovingClip
from quietbit.plan.participation import EACH_ONCE, POISSON, SECRET
from quietbit.secagg.plan import ServerModel
from quietbit.target import MOST_CLIENTS, Trust, Unit

if TYPE_CHECKING:
    from quietbit.plan.plan import Plan

__all__ = ["APP", "CENTRAL", "FULL", "OF_ENGINE", "OF_STEP", "PUBLIC", "REPLAY", "check"]

PUBLIC = "none"  # in place of a mechanism: clipped updates without noise or privacy
CENTRAL = "gaussian"  # its noise is added once, to the sum, by a trusted server
SOLVED_FOR_SUMS = "imvu"  # the family that `calibrate_sum` solves for
FULL, REPLAY = DOWNLINKS = ("full", "replay")
SERVER, APP = STARTS = ("server", "app")  # who provides the model of round 0 to clients
TIMEOUT = 600.0
START, MEDIAN = 1.0, 0.5  # of a moving clip: its start, and the share of updates that it leaves unchanged
EVERY, EVERY_OF_SUMS = 20, 40  # one client of these scouts: 5.3 % more squared error, or 5.2 % of a sum's, whose noise
# is that of the whole sum, so that a client less costs twice
STRENGTHS = ("design_epsilon", "noise_multiplier")
# Choices of a mechanism at the paper's values: harmless where a mechanism does not use them.
USUAL = {"bits": None, "levels": None, "beta": 1.0, "clamp": False, "decoder": "alphabet", "rotate": False}
# Fields that only a simulation reads, and fields that only an engine reads.
OF_SIMULATION = ("cohort", "rng", "seed")
OF_SUMS = ("server", "threshold", "neighbours", "share_threshold", "timeout")
OF_STEP = ("server_rate", "server_momentum")
OF_STEPS = ("local_rate", "local_bits")
OF_BATCHES = ("samples", "sampling_rate", "local_steps", *OF_STEPS)
OF_EVALUATION = ("evaluate_metric", "evaluate_most", "evaluate_cells", "evaluate_releases")
OF_ENGINE = ("arrivals", "local_arrays", "evaluate_epsilon", *OF_EVALUATION, *OF_SUMS, *OF_STEP, *OF_BATCHES)

Rule: TypeAlias = tuple[str, object, str]  # a field, whether it is as it must be, and what it must be


def check(plan: Plan) -> None:
    """Complete a plan; refuse unknown words, numbers out of range, and choices without effect."""
    _complete(plan)
    for part in (_kind, _mechanism, _trust, _clip, _sums, _downlink, _evaluation, _arrivals):
        for name, holds, rule in part(plan):
            value = getattr(plan, name)
            if not holds and value is None:
                raise InvalidParameter.of(name, rule)
            require(holds, name, getattr(value, "value", value), rule)


def _complete(plan: Plan) -> None:
    """Read every field, and fill in what is left out and follows from other choices."""

    def put(name: str, value: Any) -> None:
        object.__setattr__(plan, name, value)

    def fill(**values: Any) -> None:
        for name, value in values.items():
            if getattr(plan, name) is None:
                put(name, value)

    for one in attrs.fields(type(plan)):
        value = getattr(plan, one.name)
        if "read" in one.metadata and (value, one.default) != (None, None):
            put(one.name, one.metadata["read"](value, one.name))
    if cast(Any, plan.clip) == AUTO:
        put("clip", START)
        fill(clip_quantile=MEDIAN)
    if plan.clip_quantile is not None or plan.clip_scouts is not None:
        fill(clip_quantile=MEDIAN, clip_rate=RATE, clip_scouts=EVERY_OF_SUMS if plan.secure else EVERY)
        moving = cast(MovingClip, plan.moving_clip())
        put("clip_quantile", moving.quantile)
        put("clip_rate", moving.rate)
    if plan.arrivals is not None:
        fill(staleness=0)
    if plan.mode == "adaptive" and plan.unit is Unit.SAMPLE:
        fill(sampling_rate=1.0)
    if plan.secure:
        fill(min_honest_clients=plan.summed_clients, **{"timeout": TIMEOUT} if plan.mode == "adaptive" else {})


def _left_out(plan: Plan, names: tuple[str, ...], rule: str) -> Iterator[Rule]:
    fields = attrs.fields_dict(type(plan))
    return ((name, getattr(plan, name) == fields[name].default, f"left out {rule}") for name in names)


def _given(plan: Plan, name: str, rule: str) -> Rule:
    return name, getattr(plan, name) is not None, f"given{rule}"


def _kind(plan: Plan) -> Iterator[Rule]:
    """Refuse what only the other kind of run reads; an engine's needs a budget, and maybe samples."""
    if plan.mode == "planned":
        yield from _left_out(plan, OF_ENGINE, "of a simulation, which has no nodes")
        return
    rule = "of an engine's run: its strategy chooses clients, and nodes their randomness"
    yield from _left_out(plan, OF_SIMULATION, rule)
    yield "mechanism", plan.private, "a private mechanism"
    yield "participation", plan.participation in (EACH_ONCE, SECRET), "left out, or secret-order"
    yield "trust", plan.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION), "local or secure-aggregation"
    yield _given(plan, "epsilon", ": what all releases of one client together may cost")
    if plan.calibrated:
        yield _given(plan, "releases", " (how often a client may answer), or the strength of the mechanism by hand")
    else:
        yield from _left_out(plan, ("releases",), "where the mechanism's strength is given")
    if plan.unit is Unit.CLIENT:
        yield from _left_out(plan, OF_BATCHES, "unless the unit is a sample")
        return
    yield _given(plan, "samples", " where samples are protected: about how many a site has")
    yield "norm", plan.norm is Norm.L2, "l2 where samples are protected"
    yield "participation", not plan.secret_order, "left out where samples are protected: it hides clients"
    if plan.local_steps is None:
        yield from _left_out(plan, OF_STEPS, "unless sites take local steps")
    else:
        yield _given(plan, "local_rate", " where sites take local steps: the learning rate of each")


def _mechanism(plan: Plan) -> Iterator[Rule]:
    """Require a strength, or a budget to derive it from; refuse choices that the mechanism does not use."""
    if not plan.private:
        yield from _left_out(plan, ("epsilon", "releases", "keep", *STRENGTHS), "without privacy")
    check_known(plan.mechanism, [*families(), AUTO, PUBLIC], "mechanism")
    chosen = family(plan.mechanism) if plan.mechanism not in (AUTO, PUBLIC) else None
    rule = f"left out for {plan.mechanism}, which makes no use of it"
    for name, usual in USUAL.items():
        used = chosen is not None and name in chosen.uses
        yield name, used or getattr(plan, name) in (None, usual), rule
    if chosen is not None:
        rule = f"for {plan.mechanism}, whose strength is its {chosen.strength.replace('_', ' ')}"
        yield from _left_out(plan, tuple(name for name in STRENGTHS if name != chosen.strength), rule)
        rule = f"given for {plan.mechanism}, or a budget epsilon to calibrate it to"
        yield chosen.strength, not plan.calibrated or plan.epsilon is not None, rule
    elif plan.private:
        yield from _left_out(plan, STRENGTHS, f"for {AUTO}, which finds its own")
        yield _given(plan, "epsilon", f" for {AUTO}: the budget that a mechanism is chosen for")


def _trust(plan: Plan) -> Iterator[Rule]:
    """Refuse a mechanism without an account under the trust model."""
    rule = "secure where it is secret who takes part: nobody must be able to draw it again"
    yield "rng", plan.participation not in (SECRET, POISSON) or plan.rng == "secure", rule
    rule = "another without central trust: a server that sees who answers is hidden nothing"
    yield "participation", plan.participation != POISSON or plan.trust is Trust.CENTRAL, rule
    rule = "local: what a crowd hides from others than the server is said beside it (`quietbit.plan.costs`)"
    yield "trust", plan.trust is not Trust.SHUFFLED, rule
    if plan.trust is not Trust.LOCAL:
        names = [one.name for one in importable(families()) if one.summable] if plan.secure else [CENTRAL]
        rule = f"{' or '.join(names)} under {plan.trust.value} trust"
        yield "mechanism", plan.mechanism in [*names, AUTO], rule
        yield "unit", plan.unit is Unit.CLIENT, f"client under {plan.trust.value} trust"


def _clip(plan: Plan) -> Iterator[Rule]:
    """Check a clip that moves by scouts' answers, which share the budget of the updates."""
    if plan.clip_scouts is None:
        yield from _left_out(plan, ("clip_rate",), "unless the clip moves, by a clip quantile")
        return
    yield "clip_quantile", plan.private, "left out without privacy"
    rule = "local or secure-aggregation where the clip moves: a trusted server's noise has one clip"
    yield "trust", plan.trust is not Trust.CENTRAL, rule
    rule = "client where the clip moves: samples are clipped one by one, and a client has no one length"
    yield "unit", plan.unit is Unit.CLIENT, rule
    rule = "left out where the mechanism's strength is given: an answer costs what the budget leaves"
    yield "clip_scouts", plan.calibrated, rule
    rule = "left out where scouts answer: the account of the crowd does not have them"
    yield "participation", not plan.secret_order, rule
    rule = f"at most {plan.cohort}, the cohort, so that somebody scouts"
    yield "clip_scouts", plan.mode == "adaptive" or plan.clip_scouts <= plan.cohort, rule


def _sums(plan: Plan) -> Iterator[Rule]:
    """Check what nodes and server of a masked sum must agree on; without sums, refuse it."""
    if not plan.secure:
        yield from _left_out(plan, ("min_honest_clients", *OF_SUMS), "unless trust is secure-aggregation")
        return
    if plan.mode == "planned":
        yield "cohort", 2 <= plan.cohort <= MOST_CLIENTS, f"from 2 to {MOST_CLIENTS} for sums"
    else:
        yield "participation", not plan.secret_order, "left out for sums, which have their own account"
        yield _given(plan, "threshold", " for sums: the fewest clients that a sum is made of")
        rule = " for sums: active (it may lie, and nodes have identities), or honest-but-curious (it is trusted to"
        yield _given(plan, "server", rule + " follow the protocol)")
        ServerModel(plan.server)
        dealt, shares = plan.neighbours, plan.share_threshold
        yield "neighbours", dealt or not shares, "a whole number beside a share threshold"
        fits = shares is None if dealt is None else shares is not None and shares <= dealt + 1
        yield "share_threshold", fits, "a whole number beside neighbours, and at most one more than they are"
    most = plan.summed_clients
    yield "min_honest_clients", 2 <= cast(int, plan.min_honest_clients) <= most, f"a whole number from 2 to {most}"
    width = check_int(plan.bits or 1, "bits", 1, MOST_BINOMIAL_BITS)
    yield "levels", width == 1 or plan.levels in (None, 2), "left out for sums of codes of several bits"
    if plan.calibrated:
        rule = "left out: for a budget under secure aggregation it is chosen"
        yield "beta", plan.beta in (None, 1.0), rule
        yield "clamp", not plan.clamp, rule
        rule = f"{SOLVED_FOR_SUMS} to meet a budget by sums"
        yield "mechanism", plan.mechanism in (SOLVED_FOR_SUMS, AUTO), rule


def _downlink(plan: Plan) -> Iterator[Rule]:
    """Require rows that all clients share, of a mechanism that keeps few, for a replay."""
    Choices(rows=plan.rows)  # refuses another word
    if plan.replayed or plan.rows is not None:
        kept = plan.private and plan.mechanism != AUTO and (plan.keep is not None or plan.knows_rows)
        rule = "left out unless few coordinates are kept: for vmvu, or where keep is given beside a mechanism"
        yield "downlink" if plan.replayed else "rows", kept and plan.trust is not Trust.CENTRAL, rule
        alike = plan.rows != OWN or not (plan.replayed or plan.secure)
        yield "rows", alike, "shared, or left out, for sums and replayed rounds"
    if not plan.replayed:
        yield from _left_out(plan, ("downlink_bits", "downlink_start", *OF_STEP), f"unless downlink is {REPLAY}")
    _ = plan.server_step  # refuses a bad rate or momentum


def _evaluation(plan: Plan) -> Iterator[Rule]:
    """Check the separate budget for answers about the model; without one, refuse its options."""
    if plan.evaluate_epsilon is None:
        yield from _left_out(plan, OF_EVALUATION, "unless evaluations are answered, by an evaluate.epsilon")
        return
    rule = "left out where evaluations are answered: the account of the crowd does not have them"
    yield "participation", not plan.secret_order, rule
    if plan.releases is None:
        yield _given(plan, "evaluate_releases", " where the mechanism's strength is")
    plan.update_target  # noqa: B018 - refused now, if the budget is too small


def _arrivals(plan: Plan) -> Iterator[Rule]:
    """Check weights, and rounds that do not wait for everybody: both need releases that the server decodes."""
    seen = plan.private and plan.trust is Trust.LOCAL and not plan.secret_order
    rule = "left out unless the server sees every release: what is summed behind masks, or kept secret, has no weight"
    yield "most_examples", seen or plan.most_examples is None, rule
    if plan.staleness is not None:
        if plan.mode == "adaptive":
            yield _given(plan, "arrivals", " beside a staleness: how many releases a round waits for")
        rule = "local where rounds do not wait: masks, secret orders and clips that move need all releases of a round"
        yield "trust", seen and plan.clip_quantile is None, rule
        rule = "0 where rounds are replayed: a broadcast has the rows of its own round alone"
        yield "staleness", not (plan.replayed and plan.staleness), rule
