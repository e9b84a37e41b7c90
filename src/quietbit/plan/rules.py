"""The rules of a plan: known words, numbers in range, and no choice without effect.

Idea     a choice without effect is refused, so that no record claims a number that was not used. Each function checks
         one part of a plan; values that it completes (an omitted rate, a threshold) are stored in the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs

from quietbit.design.binomial import MOST_BINOMIAL_BITS
from quietbit.errors import InvalidParameter, check_int, check_known, check_real, require
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.calibrate import AUTO
from quietbit.mechanism.family import OWN, check_rows_word
from quietbit.mechanism.projected import MOST_SAMPLES
from quietbit.mechanism.registry import families, family, importable
from quietbit.plan.clip import RATE, ClipRule
from quietbit.plan.participation import EACH_ONCE, KINDS, POISSON, SECRET
from quietbit.secagg.plan import ServerModel
from quietbit.target import (
    MOST_CLIENTS,
    Trust,
    Unit,
)
from quietbit.wire.downlink import BITS

if TYPE_CHECKING:
    from quietbit.plan.plan import Plan

__all__ = [
    "APP",
    "CENTRAL",
    "FULL",
    "OF_ENGINE",
    "OF_EVALUATION",
    "OF_SIMULATION",
    "OF_STEP",
    "PUBLIC",
    "REPLAY",
    "USUAL",
    "check",
]

PUBLIC = "none"  # in place of a mechanism: clipped updates without noise or privacy
CENTRAL = "gaussian"  # its noise is added once, to the sum, by a trusted server
SOLVED_FOR_SUMS = "imvu"  # the family that `calibrate_sum` solves for
RNGS = ("secure", "seeded")
FULL, REPLAY = DOWNLINKS = ("full", "replay")
SERVER, APP = STARTS = ("server", "app")  # who provides the model of round 0 to clients
TIMEOUT = 600.0
MOST_LATE = 1000  # rounds, each of which keeps its sums until then
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


def check(plan: Plan) -> None:
    """Refuse unknown words, numbers out of range, and choices without effect."""
    if cast(Any, plan.clip) == AUTO:
        _put(plan, "clip", START)
        _put(plan, "clip_quantile", MEDIAN if plan.clip_quantile is None else plan.clip_quantile)
    check_real(plan.clip, "clip")
    _put(plan, "cohort", check_int(plan.cohort, "cohort", 1))
    _put(plan, "seed", check_int(plan.seed, "seed", 0))
    if plan.epsilon is not None:
        _put(plan, "epsilon", check_real(plan.epsilon, "epsilon"))
    require(plan.mode in ("planned", "adaptive"), "mode", plan.mode, "planned or adaptive")
    require(plan.rng in RNGS, "rng", plan.rng, "one of " + ", ".join(RNGS))
    require(plan.participation in KINDS, "participation", plan.participation, "one of " + ", ".join(KINDS))
    _check_parts(plan)
    _check_mechanism(plan)
    _check_trust(plan)
    _check_clip(plan)  # before sums, which scouts are not part of
    _check_sums(plan)
    _check_downlink(plan)
    _check_evaluation(plan)
    _check_weights(plan)
    _check_arrivals(plan)


def _put(plan: Plan, name: str, value: Any) -> None:
    object.__setattr__(plan, name, value)


def _unused(plan: Plan, names: tuple[str, ...], rule: str) -> None:
    """Refuse these fields unless they have their defaults."""
    for one in attrs.fields(type(plan)):
        if one.name in names:
            value = getattr(plan, one.name)
            require(value == one.default, one.name, getattr(value, "value", value), f"left out {rule}")


def _needs(plan: Plan, name: str, rule: str) -> None:
    """Refuse a plan without this field."""
    if getattr(plan, name) is None:
        raise InvalidParameter.of(name, rule)


def _check_parts(plan: Plan) -> None:
    """Refuse what only the other kind of run reads; an engine's run needs a budget, and releases to meet it."""
    if plan.mode == "planned":
        _unused(plan, OF_ENGINE, "of a simulation, which has no nodes")
        return
    _unused(plan, OF_SIMULATION, "of an engine's run: its strategy chooses clients, and nodes their randomness")
    require(plan.private, "mechanism", plan.mechanism, "a private mechanism")
    require(plan.participation in (EACH_ONCE, SECRET), "participation", plan.participation, "left out, or secret-order")
    rule = "local or secure-aggregation"
    require(plan.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION), "trust", plan.trust.value, rule)
    _needs(plan, "epsilon", "given: what all releases of one client together may cost")
    if plan.calibrated:
        _needs(plan, "releases", "given (how often a client may answer), or the strength of the mechanism by hand")
    _check_batches(plan)
    rule = "left out where the mechanism's strength is given"
    require(plan.calibrated or plan.releases is None, "releases", plan.releases, rule)


def _check_batches(plan: Plan) -> None:
    """Check a site's batches, where the privacy unit is a sample: its samples, and their sampling rate."""
    if plan.unit is Unit.CLIENT:
        _unused(plan, OF_BATCHES, "unless the unit is a sample")
        return
    _needs(plan, "samples", "given where samples are protected: about how many a site has")
    require(plan.norm is Norm.L2, "norm", plan.norm.value, "l2 where samples are protected")
    rule = "left out where samples are protected: it hides clients"
    require(not plan.secret_order, "participation", plan.participation, rule)
    if plan.local_steps is None:
        _unused(plan, OF_STEPS, "unless sites take local steps")
    else:
        _needs(plan, "local_rate", "given where sites take local steps: the learning rate of each")
    rate = 1.0 if plan.sampling_rate is None else plan.sampling_rate
    _put(plan, "samples", check_int(plan.samples, "samples", 1, MOST_SAMPLES))
    _put(plan, "sampling_rate", check_real(rate, "sampling_rate", at_most=1.0))


def _check_mechanism(plan: Plan) -> None:
    """Require a strength, or a budget to derive it from; refuse choices that the mechanism does not use."""
    if not plan.private:
        _unused(plan, ("epsilon", "releases", "keep", *STRENGTHS), "without privacy")
    known = [*families(), AUTO, PUBLIC]
    check_known(plan.mechanism, known, "mechanism")
    chosen = family(plan.mechanism) if plan.mechanism not in (AUTO, PUBLIC) else None
    uses = chosen.uses if chosen is not None else ()
    for name, usual in USUAL.items():
        value = getattr(plan, name)
        rule = f"left out for {plan.mechanism}, which makes no use of it"
        require(value is None or value == usual or name in uses, name, value, rule)
    if chosen is None:
        if plan.private:
            _unused(plan, STRENGTHS, f"for {AUTO}, which finds its own")
        if plan.private and plan.epsilon is None:
            raise InvalidParameter.of("epsilon", f"given for {AUTO}: the budget that a mechanism is chosen for")
        return
    for name in STRENGTHS:
        value = getattr(plan, name)
        if value is not None:
            own = chosen.strength.replace("_", " ")
            rule = f"left out for {plan.mechanism}, whose strength is its {own}"
            require(name == chosen.strength, name, value, rule)
            _put(plan, name, check_real(value, name))
    if plan.calibrated and plan.epsilon is None:
        raise InvalidParameter.of(
            chosen.strength, f"given for {plan.mechanism}, or a budget epsilon to calibrate it to"
        )


def _check_trust(plan: Plan) -> None:
    """Refuse a mechanism without an account under the trust model."""
    rule = "secure where it is secret who takes part: nobody must be able to draw it again"
    require(plan.participation not in (SECRET, POISSON) or plan.rng == "secure", "rng", plan.rng, rule)
    rule = "another without central trust: a server that sees who answers is hidden nothing"
    require(plan.participation != POISSON or plan.trust is Trust.CENTRAL, "participation", plan.participation, rule)
    rule = "local: what a crowd hides from others than the server is said beside it (`quietbit.plan.costs`)"
    require(plan.trust is not Trust.SHUFFLED, "trust", plan.trust.value, rule)
    if plan.trust is Trust.LOCAL:
        return
    names = [one.name for one in importable(families()) if one.summable] if plan.secure else [CENTRAL]
    rule = f"{' or '.join(names)} under {plan.trust.value} trust"
    require(plan.mechanism in [*names, AUTO], "mechanism", plan.mechanism, rule)
    require(plan.unit is Unit.CLIENT, "unit", plan.unit.value, f"client under {plan.trust.value} trust")


def _check_sums(plan: Plan) -> None:
    """Check the honest clients of sums: required with sums, refused without."""
    if not plan.secure:
        _unused(plan, ("min_honest_clients", *OF_SUMS), "unless trust is secure-aggregation")
        return
    if plan.mode == "adaptive":
        _check_protocol(plan)
    else:
        check_int(plan.cohort, "cohort", 2, MOST_CLIENTS)
    most = plan.summed_clients
    known = most if plan.min_honest_clients is None else plan.min_honest_clients
    _put(plan, "min_honest_clients", check_int(known, "min_honest_clients", 2, most))
    width = check_int(plan.bits or 1, "bits", 1, MOST_BINOMIAL_BITS)
    even = width == 1 or plan.levels in (None, 2)
    require(even, "levels", plan.levels, "left out for sums of codes of several bits")
    if plan.calibrated:
        rule = "left out: for a budget under secure aggregation it is chosen"
        require(plan.beta in (None, 1.0), "beta", plan.beta, rule)
        require(not plan.clamp, "clamp", plan.clamp, rule)
        rule = f"{SOLVED_FOR_SUMS} to meet a budget by sums"
        require(plan.mechanism in (SOLVED_FOR_SUMS, AUTO), "mechanism", plan.mechanism, rule)


def _check_protocol(plan: Plan) -> None:
    """Check what nodes and server of a masked sum must agree on."""
    rule = "left out for sums, which have their own account"
    require(plan.participation != SECRET, "participation", plan.participation, rule)
    _needs(plan, "threshold", "given for sums: the fewest clients that a sum is made of")
    rule = "given for sums: active (it may lie, and nodes have identities), or honest-but-curious (it is trusted"
    _needs(plan, "server", rule + " to follow the protocol)")
    ServerModel(plan.server)
    _put(plan, "threshold", check_int(plan.threshold, "threshold", 2, MOST_CLIENTS))
    if plan.neighbours is not None or plan.share_threshold is not None:
        _put(plan, "neighbours", check_int(plan.neighbours, "neighbours", 2, MOST_CLIENTS))
        most = cast(int, plan.neighbours) + 1
        _put(plan, "share_threshold", check_int(plan.share_threshold, "share_threshold", 2, most))
    _put(plan, "timeout", check_real(TIMEOUT if plan.timeout is None else plan.timeout, "timeout"))


def _check_clip(plan: Plan) -> None:
    """Check a clip that moves by scouts' answers, which share the budget of the updates."""
    if plan.clip_quantile is None and plan.clip_scouts is None:
        _unused(plan, ("clip_rate",), "unless the clip moves, by a clip quantile")
        return
    given = MEDIAN if plan.clip_quantile is None else plan.clip_quantile
    moves = ClipRule(given, RATE if plan.clip_rate is None else plan.clip_rate)
    _put(plan, "clip_quantile", moves.quantile)
    _put(plan, "clip_rate", moves.rate)
    every = (EVERY_OF_SUMS if plan.secure else EVERY) if plan.clip_scouts is None else plan.clip_scouts
    _put(plan, "clip_scouts", check_int(every, "clip_scouts", 2))
    require(plan.private, "clip_quantile", plan.clip_quantile, "left out without privacy")
    rule = "local or secure-aggregation where the clip moves: a trusted server's noise has one clip"
    require(plan.trust is not Trust.CENTRAL, "trust", plan.trust.value, rule)
    rule = "client where the clip moves: samples are clipped one by one, and a client has no one length"
    require(plan.unit is Unit.CLIENT, "unit", plan.unit.value, rule)
    rule = "left out where the mechanism's strength is given: an answer costs what the budget leaves"
    require(plan.calibrated, "clip_scouts", plan.clip_scouts, rule)
    rule = "left out where scouts answer: the account of the crowd does not have them"
    require(not plan.secret_order, "participation", plan.participation, rule)
    rule = f"at most {plan.cohort}, the cohort, so that somebody scouts"
    require(plan.mode == "adaptive" or every <= plan.cohort, "clip_scouts", every, rule)


def _check_downlink(plan: Plan) -> None:
    """Require rows that all clients share, of a mechanism that keeps few, for a replay."""
    require(plan.downlink in DOWNLINKS, "downlink", plan.downlink, "one of " + ", ".join(DOWNLINKS))
    check_rows_word(plan.rows)
    if plan.replayed or plan.rows is not None:
        asked = ("downlink", plan.downlink) if plan.replayed else ("rows", plan.rows)
        kept = plan.private and plan.mechanism != AUTO and (plan.keep is not None or plan.knows_rows)
        rule = "left out unless few coordinates are kept: for vmvu, or where keep is given beside a mechanism"
        require(kept and plan.trust is not Trust.CENTRAL, *asked, rule)
        alike = plan.rows != OWN or not (plan.replayed or plan.secure)
        require(alike, "rows", plan.rows, "shared, or left out, for sums and replayed rounds")
    if not plan.replayed:
        _unused(plan, ("downlink_bits", "downlink_start", *OF_STEP), f"unless downlink is {REPLAY}")
        return
    bits, start = plan.downlink_bits, plan.downlink_start
    require(bits is None or bits in BITS, "downlink_bits", bits, "32, 16 or 8")
    require(start is None or start in STARTS, "downlink_start", start, " or ".join(STARTS))
    _ = plan.server_step  # refuses a bad rate or momentum


def _check_weights(plan: Plan) -> None:
    """Check weights by public numbers of examples, by which the server multiplies decoded releases."""
    if plan.most_examples is None:
        return
    _put(plan, "most_examples", check_int(plan.most_examples, "most_examples", 1))
    rule = "left out unless the server sees every release: what is summed behind masks, or kept secret, has no weight"
    seen = plan.private and plan.trust is Trust.LOCAL and not plan.secret_order
    require(seen, "most_examples", plan.most_examples, rule)


def _check_arrivals(plan: Plan) -> None:
    """Check rounds that do not wait for everybody, whose releases are decoded round by round."""
    if plan.arrivals is None and plan.staleness is None:
        return
    if plan.mode == "adaptive":
        _needs(plan, "arrivals", "given beside a staleness: how many releases a round waits for")
        _put(plan, "arrivals", check_int(plan.arrivals, "arrivals", 1))
    late = check_int(plan.staleness or 0, "staleness", 0, MOST_LATE)
    _put(plan, "staleness", late)
    rule = "local where rounds do not wait: masks, secret orders and clips that move need all releases of a round"
    seen = plan.private and plan.trust is Trust.LOCAL and not plan.secret_order and plan.clip_quantile is None
    require(seen, "trust", plan.trust.value, rule)
    rule = "0 where rounds are replayed: a broadcast has the rows of its own round alone"
    require(not (plan.replayed and late), "staleness", plan.staleness, rule)


def _check_evaluation(plan: Plan) -> None:
    """Check the separate budget for answers about the model; without one, refuse its options."""
    if plan.evaluate_epsilon is None:
        _unused(plan, OF_EVALUATION, "unless evaluations are answered, by an evaluate.epsilon")
        return
    rule = "left out where evaluations are answered: the account of the crowd does not have them"
    require(not plan.secret_order, "participation", plan.participation, rule)
    if plan.evaluate_releases is None and plan.releases is None:
        raise InvalidParameter.of("evaluate_releases", "given where the mechanism's strength is")
    plan.update_target  # noqa: B018 - refused now, if the budget is too small
