"""The plan of a private run: one frozen value that simulator, engines, nodes and reports each read their part of.

Idea     whoever starts a run says what may leave a client, what it may cost, who takes part and who may look. From
         these choices alone follow the mechanism (built as told, or calibrated on the account that will be enforced)
         and the price of one release, so that they cannot disagree. A choice that plays no part is refused: no record
         claims a number that was not used. A plan is made in Python, or read from a table: TOML, or the config of
         Flower or NVFlare, whose keys are these with - for _ and ``quietbit.`` before them.
Symbols  the budget is ``epsilon`` at ``delta``, for all releases of one client together; a design's own epsilon is
         ``design_epsilon``.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.

| key | meaning | default |
|---|---|---|
| `mechanism` | `imvu`, `vmvu`, `mvu`, `gaussian`, `laplace`, `sign`, `skellam`, `auto`, or `none` (public) | required |
| `clip` | radius of the ball that updates are clipped to | required |
| `adjacency` | `zero-out` or `replace-one` | required |
| `epsilon` | what all releases of one client together may cost | required in an engine |
| `delta` | the delta of that epsilon | 1e-5 |
| `unit` | whose loss is counted: the `client`'s, or that of any `sample` of its data | `client` |
| `samples`, `sampling-rate` | engine, for unit `sample`: about how many a site has, the share in a batch | needed, 1 |
| `local-steps`, `local-rate` | engine, for unit `sample`: private steps of a site per round, their learning rate | 1 |
| `local-bits` | of each coordinate of the difference of models that such a site sends, 1 to 8 | 4 |
| `trust` | `local`, `secure-aggregation` (imvu: the server sees sums), in a simulation `central` (gaussian) | `local` |
| `releases` | how often a client takes part: the mechanism is calibrated to it | required if calibrated |
| `norm` | `l2` or `l1` | `l2` |
| `design-epsilon` | the design's epsilon (imvu, vmvu, mvu), instead of calibrating | calibrated |
| `noise-multiplier` | noise in units of the sensitivity (the others), instead of calibrating | calibrated |
| `bits`, `levels`, `beta`, `clamp`, `decoder`, `rotate` | choices of the mechanism, as in `calibrate` | its own |
| `keep` | how many rotated coordinates are sent, a power of two or `auto` | all, 1,024 or more for vmvu |
| `rows` | whose rotated coordinates are kept: `own`, or `shared` by all clients of a round | `own`; `shared` for sums |
| `downlink` | `full`: the model goes down; `replay`: shared rows, and clients replay rounds | `full` |
| `downlink-bits` | replay: of a number of a round, 32, 16 or 8 | 32 |
| `downlink-start` | replay: `app` where clients have the model of round 0 from their app, else `server` | `server` |
| `server-rate`, `server-momentum` | engine, replay: the server's step on the mean | 1, 0 |
| `clip-quantile` | the share of updates that the clip shall leave alone: it moves every round | the clip stays |
| `clip-rate` | by which steps the clip moves | 0.2 |
| `clip-bit-epsilon` | what the bit beside a release costs where the clip moves | all bits: a tenth of the budget |
| `evaluate.epsilon` | engine: what one private answer to an evaluation may cost | evaluations are not answered |
| `evaluate.metric` | engine: which metric of the app's, a number from 0 to `evaluate.most` | `accuracy`, 1 |
| `evaluate.cells` | engine: where the metric is a list of counts (histogram, confusion matrix), how many | a number |
| `evaluate.releases` | engine: how many evaluations a client answers, out of the same budget | `releases` |
| `min-honest-clients` | for sums: how many clients answer and do not collude with the server | all, or threshold |
| `participation` | `secret-order`: once per epoch, in secret; in a simulation `each-once`, `sampled` | `each-once` |
| `cohort` | simulation: clients in a round | 1 |
| `rng`, `seed` | simulation: `secure` or `seeded`; what fixes who takes part, and seeded randomness | `secure`, 0 |
| `local-arrays` | engine: arrays that are never sent, names with commas between them, `*` allowed | none |
| `server` | engine: `active` (sums are secret from a server that lies) or `honest-but-curious` | for sums |
| `threshold` | engine: t, the clients that must stay in a sum of fewer than 3 t / 2 (active) or 2 t | for sums |
| `neighbours`, `share-threshold` | engine: with how many a client deals, and who recovers its secrets | all |
| `timeout` | engine: seconds that keys, shares and unmasking wait for nodes, each | 600 |

Calibration. The releases of the most frequent client are known beforehand, because participation is; the budget is
met for that client. At sample level a noise multiplier given by hand is in units of the largest sensitivity, clip /
(samples of the smallest client), and a budget is met on the run's own account. Under secure aggregation it is met by
the account of the sum; under central trust the mechanism's noise is that of the whole sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any, cast, final

import attrs
import numpy as np
from attrs import converters, field, frozen
from numpy.typing import NDArray

from quietbit.design.binomial import MOST_BINOMIAL_BITS, binomial_design
from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_known, check_real, member, require
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.calibrate import AUTO, Calibration, calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import OWN, SHARED, Choices, check_rows_word
from quietbit.mechanism.interpolated import UNBIASED
from quietbit.mechanism.local_steps import site_release
from quietbit.mechanism.projected import MOST_SAMPLES, ProjectedSamples, project
from quietbit.mechanism.registry import families, family, importable
from quietbit.plan.clip import RATE, ClipRule, MovingClip, usual_bit_epsilon
from quietbit.plan.costs import ClientCosts
from quietbit.plan.evaluation import Evaluation
from quietbit.plan.participation import EACH_ONCE, KINDS, SAMPLED, SECRET, Schedule
from quietbit.privacy.account import Account, Mode
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.secagg.plan import ServerModel
from quietbit.target import (
    MOST_CLIENTS,
    Adjacency,
    Target,
    Trust,
    Unit,
    as_adjacency,
    as_trust,
    as_unit,
    check_delta,
    check_releases,
)
from quietbit.wire.downlink import BITS, ServerStep

__all__ = ["APP", "KEYS", "OF_ENGINE", "OF_STEP", "PREFIX", "PUBLIC", "Plan"]

Priced = Callable[[Mechanism], Guarantee]

PREFIX = "quietbit."  # of the keys in an engine's config
PUBLIC = "none"  # in place of a mechanism: clipped updates as they are, without privacy
CENTRAL = "gaussian"  # whose noise a trusted server adds once, to the sum
SOLVED_FOR_SUMS = "imvu"  # what `calibrate_sum` solves for
RNGS = ("secure", "seeded")
FULL, REPLAY = DOWNLINKS = ("full", "replay")
SERVER, APP = STARTS = ("server", "app")  # who has the model of round 0 for clients
TIMEOUT = 600.0
STRENGTHS = ("design_epsilon", "noise_multiplier")
# Choices of a mechanism, with what the paper takes: harmless where a mechanism makes no use of it.
USUAL = {"bits": None, "levels": None, "beta": 1.0, "clamp": False, "decoder": "alphabet", "rotate": False}
# What only a simulation reads, and what only an engine does.
OF_SIMULATION = ("cohort", "rng", "seed")
OF_SUMS = ("server", "threshold", "neighbours", "share_threshold", "timeout")
OF_STEP = ("server_rate", "server_momentum")
OF_STEPS = ("local_rate", "local_bits")
OF_BATCHES = ("samples", "sampling_rate", "local_steps", *OF_STEPS)
OF_EVALUATION = ("evaluate_metric", "evaluate_most", "evaluate_cells", "evaluate_releases")
OF_ENGINE = ("local_arrays", "evaluate_epsilon", *OF_EVALUATION, *OF_SUMS, *OF_STEP, *OF_BATCHES)
# What the layers below call the value of a key.
BELOW = {
    "radius": "clip", "norm of the ball": "norm", "output_bits": "bits", "input_levels": "levels",
    "bit_epsilon": "clip_bit_epsilon", "rate": "server_rate", "momentum": "server_momentum",
}  # fmt: skip


def _norm(value: Norm | str) -> Norm:
    return member(Norm, value, "norm")


def _names(value: str | list[str] | tuple[str, ...]) -> str:
    names = ", ".join(value) if isinstance(value, list | tuple) else value
    require(isinstance(names, str), "local_arrays", value, "text: names with commas between them")
    return names


@final
@frozen
class Plan:
    """Mechanism, budget, participation and trust of a run, as the table above has them.

    ``mechanism`` is the word of a family, ``auto`` for the one that serves the budget best under the plan's trust
    (`mechanism_for` names it), or ``none`` for a run without privacy. Its strength is ``design_epsilon`` or
    ``noise_multiplier``, as the family calls it. Left out, it is calibrated so that all releases of the most frequent
    client together meet the budget; given, a budget stops a run before it would be exceeded.

    ``mode`` says which account is enforced, and so calibrated on: ``planned``, where all releases are of one mechanism
    fixed beforehand, as in a simulation; or ``adaptive``, as nodes keep it, who do not believe a server that the next
    mechanism will be the same. A plan that is read from an engine's config is adaptive.

    >>> plan = Plan("gaussian", clip=1.0, adjacency="zero-out", epsilon=2.0, releases=7)
    >>> plan.target.delta, round(plan.mechanism_for(dimension=30).noise_multiplier, 2)
    (1e-05, 5.28)
    """

    mechanism: str
    clip: float = field()
    adjacency: Adjacency = field(converter=as_adjacency)
    norm: Norm = field(default=Norm.L2, converter=_norm)
    epsilon: float | None = None
    delta: float = field(default=1e-5, converter=check_delta)
    unit: Unit = field(default=Unit.CLIENT, converter=as_unit)
    trust: Trust = field(default=Trust.LOCAL, converter=as_trust)
    releases: int | None = field(default=None, converter=converters.optional(check_releases))
    cohort: int = 1
    participation: str = EACH_ONCE
    min_honest_clients: int | None = None
    design_epsilon: float | None = None
    noise_multiplier: float | None = None
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    rotate: bool | None = None
    rng: str = "secure"
    seed: int = 0
    keep: int | str | None = None
    rows: str | None = None
    downlink: str = FULL
    downlink_bits: int | None = None
    downlink_start: str | None = None
    server_rate: float | None = None
    server_momentum: float | None = None
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_bit_epsilon: float | None = None
    evaluate_epsilon: float | None = None
    evaluate_metric: str | None = None
    evaluate_most: float | None = None
    evaluate_cells: int | None = None
    evaluate_releases: int | None = None
    samples: int | None = None
    sampling_rate: float | None = None
    local_steps: int | None = None
    local_rate: float | None = None
    local_bits: int | None = None
    local_arrays: str = field(default="", converter=_names)
    server: str | None = None
    threshold: int | None = None
    neighbours: int | None = None
    share_threshold: int | None = None
    timeout: float | None = None
    mode: Mode = "planned"

    def __attrs_post_init__(self) -> None:
        """Refuse words that are none of ours, numbers without a meaning, and choices that play no part."""
        check_real(self.clip, "clip")
        self._put("cohort", check_int(self.cohort, "cohort", 1))
        self._put("seed", check_int(self.seed, "seed", 0))
        if self.epsilon is not None:
            self._put("epsilon", check_real(self.epsilon, "epsilon"))
        require(self.mode in ("planned", "adaptive"), "mode", self.mode, "planned or adaptive")
        require(self.rng in RNGS, "rng", self.rng, "one of " + ", ".join(RNGS))
        require(self.participation in KINDS, "participation", self.participation, "one of " + ", ".join(KINDS))
        self._check_parts()
        self._check_mechanism()
        self._check_trust()
        self._check_sums()
        self._check_clip()
        self._check_downlink()
        self._check_evaluation()

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _unused(self, names: tuple[str, ...], rule: str) -> None:
        """Refuse these fields unless they are left as they are by default."""
        for one in attrs.fields(Plan):
            if one.name in names:
                value = getattr(self, one.name)
                require(value == one.default, one.name, getattr(value, "value", value), f"left out {rule}")

    def _needs(self, name: str, rule: str) -> None:
        """Refuse a plan that leaves this field out."""
        if getattr(self, name) is None:
            raise InvalidParameter.of(name, rule)

    def _check_parts(self) -> None:
        """What the other kind of run reads is left out; an engine's run has a budget, and releases to meet it."""
        if self.mode == "planned":
            self._unused(OF_ENGINE, "of a simulation, which has no nodes")
            return
        self._unused(OF_SIMULATION, "of an engine's run: its strategy chooses clients, and nodes their randomness")
        require(self.private, "mechanism", self.mechanism, "a private mechanism")
        require(self.participation != SAMPLED, "participation", self.participation, "left out, or a secret-order")
        rule = "local or secure-aggregation"
        require(self.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION), "trust", self.trust.value, rule)
        self._needs("epsilon", "given: what all releases of one client together may cost")
        if self.calibrated:
            self._needs("releases", "given (how often a client may answer), or the strength of the mechanism by hand")
        self._check_batches()
        rule = "left out where the mechanism's strength is given"
        require(self.calibrated or self.releases is None, "releases", self.releases, rule)

    def _check_batches(self) -> None:
        """Where samples are protected: about how many a site has, and the probability of each to be in a batch."""
        if self.unit is Unit.CLIENT:
            self._unused(OF_BATCHES, "unless the unit is a sample")
            return
        self._needs("samples", "given where samples are protected: about how many a site has")
        require(self.norm is Norm.L2, "norm", self.norm.value, "l2 where samples are protected")
        rule = "left out where samples are protected: it hides clients"
        require(not self.secret_order, "participation", self.participation, rule)
        if self.local_steps is None:
            self._unused(OF_STEPS, "unless sites take local steps")
        else:
            self._needs("local_rate", "given where sites take local steps: the learning rate of each")
        rate = 1.0 if self.sampling_rate is None else self.sampling_rate
        self._put("samples", check_int(self.samples, "samples", 1, MOST_SAMPLES))
        self._put("sampling_rate", check_real(rate, "sampling_rate", at_most=1.0))

    def _check_mechanism(self) -> None:
        """The strength that belongs to the mechanism, or a budget to find it for; no choice that it does not use."""
        if not self.private:
            self._unused(("epsilon", "releases", "keep", *STRENGTHS), "without privacy")
        known = [*families(), AUTO, PUBLIC]
        require(self.mechanism in known, "mechanism", self.mechanism, "one of " + ", ".join(known))
        chosen = family(self.mechanism) if self.mechanism not in (AUTO, PUBLIC) else None
        uses = chosen.uses if chosen is not None else ()
        for name, usual in USUAL.items():
            value = getattr(self, name)
            rule = f"left out for {self.mechanism}, which makes no use of it"
            require(value is None or value == usual or name in uses, name, value, rule)
        if chosen is None:
            if self.private:
                self._unused(STRENGTHS, f"for {AUTO}, which finds its own")
            if self.private and self.epsilon is None:
                raise InvalidParameter.of("epsilon", f"given for {AUTO}: the budget that a mechanism is chosen for")
            return
        for name in STRENGTHS:
            value = getattr(self, name)
            if value is not None:
                own = chosen.strength.replace("_", " ")
                rule = f"left out for {self.mechanism}, whose strength is its {own}"
                require(name == chosen.strength, name, value, rule)
                self._put(name, check_real(value, name))
        if self.calibrated and self.epsilon is None:
            raise InvalidParameter.of(
                chosen.strength, f"given for {self.mechanism}, or a budget epsilon to calibrate it to"
            )

    def _check_trust(self) -> None:
        """Only what has an account under the trust model."""
        rule = "secure for a secret order: nobody must be able to draw it again"
        require(not self.secret_order or self.rng == "secure", "rng", self.rng, rule)
        rule = "local: what a crowd hides from others than the server is said beside it (`quietbit.plan.costs`)"
        require(self.trust is not Trust.SHUFFLED, "trust", self.trust.value, rule)
        if self.trust is Trust.LOCAL:
            return
        names = [one.name for one in importable() if one.summable] if self.secure else [CENTRAL]
        rule = f"{' or '.join(names)} under {self.trust.value} trust"
        require(self.mechanism in [*names, AUTO], "mechanism", self.mechanism, rule)
        require(self.unit is Unit.CLIENT, "unit", self.unit.value, f"client under {self.trust.value} trust")

    def _check_sums(self) -> None:
        """Whom sums count on: named where there are sums, and nowhere else."""
        if not self.secure:
            self._unused(("min_honest_clients", *OF_SUMS), "unless trust is secure-aggregation")
            return
        if self.mode == "adaptive":
            self._check_protocol()
        else:
            check_int(self.cohort, "cohort", 2, MOST_CLIENTS)
        most = self._summed_clients
        known = most if self.min_honest_clients is None else self.min_honest_clients
        self._put("min_honest_clients", check_int(known, "min_honest_clients", 2, most))
        width = check_int(self.bits or 1, "bits", 1, MOST_BINOMIAL_BITS)
        even = width == 1 or self.levels in (None, 2)
        require(even, "levels", self.levels, "left out for sums of codes of several bits")
        if self.calibrated:
            rule = "left out: for a budget under secure aggregation it is chosen"
            require(self.beta in (None, 1.0), "beta", self.beta, rule)
            require(not self.clamp, "clamp", self.clamp, rule)
            rule = f"{SOLVED_FOR_SUMS} to meet a budget by sums"
            require(self.mechanism in (SOLVED_FOR_SUMS, AUTO), "mechanism", self.mechanism, rule)

    def _check_protocol(self) -> None:
        """What nodes and server of a masked sum must agree on."""
        rule = "left out for sums, which have their own account"
        require(self.participation != SECRET, "participation", self.participation, rule)
        self._needs("threshold", "given for sums: the fewest clients that a sum is made of")
        rule = "given for sums: active (it may lie, and nodes have identities), or honest-but-curious (it is trusted"
        self._needs("server", rule + " to follow the protocol)")
        member(ServerModel, self.server, "server")
        self._put("threshold", check_int(self.threshold, "threshold", 2, MOST_CLIENTS))
        if self.neighbours is not None or self.share_threshold is not None:
            self._put("neighbours", check_int(self.neighbours, "neighbours", 2, MOST_CLIENTS))
            most = cast(int, self.neighbours) + 1
            self._put("share_threshold", check_int(self.share_threshold, "share_threshold", 2, most))
        self._put("timeout", check_real(TIMEOUT if self.timeout is None else self.timeout, "timeout"))

    def _check_clip(self) -> None:
        """A clip that moves by the bits of single clients, whose updates it clips; else nothing of it."""
        if self.clip_quantile is None:
            self._unused(("clip_rate", "clip_bit_epsilon"), "unless the clip moves, by a clip quantile")
            return
        moves = ClipRule(self.clip_quantile, RATE if self.clip_rate is None else self.clip_rate)
        self._put("clip_quantile", moves.quantile)
        self._put("clip_rate", moves.rate)
        require(self.private, "clip_quantile", self.clip_quantile, "left out without privacy")
        rule = "local where the clip moves: its bit is priced as one that the server sees"
        require(self.trust is Trust.LOCAL, "trust", self.trust.value, rule)
        rule = "client where the clip moves: samples are clipped one by one, and a bit for each would cost too much"
        require(self.unit is Unit.CLIENT, "unit", self.unit.value, rule)
        if self.clip_bit_epsilon is None and not self.calibrated:
            raise InvalidParameter.of("clip_bit_epsilon", "given where the mechanism's strength is")

    def _check_downlink(self) -> None:
        """A replay needs rounds of few numbers: rows that all clients share, of a mechanism that keeps few."""
        require(self.downlink in DOWNLINKS, "downlink", self.downlink, "one of " + ", ".join(DOWNLINKS))
        check_rows_word(self.rows)
        if self.replayed or self.rows is not None:
            asked = ("downlink", self.downlink) if self.replayed else ("rows", self.rows)
            kept = self.private and self.mechanism != AUTO and (self.keep is not None or self._knows_rows)
            rule = "left out unless few coordinates are kept: for vmvu, or where keep is given beside a mechanism"
            require(kept and self.trust is not Trust.CENTRAL, *asked, rule)
            alike = self.rows != OWN or not (self.replayed or self.secure)
            require(alike, "rows", self.rows, "shared, or left out, for sums and replayed rounds")
        if not self.replayed:
            self._unused(("downlink_bits", "downlink_start", *OF_STEP), f"unless downlink is {REPLAY}")
            return
        bits, start = self.downlink_bits, self.downlink_start
        require(bits is None or bits in BITS, "downlink_bits", bits, "32, 16 or 8")
        require(start is None or start in STARTS, "downlink_start", start, " or ".join(STARTS))
        _ = self.server_step  # which refuses a rate or momentum without a meaning

    def _check_evaluation(self) -> None:
        """A budget of its own for answers about the model; else nothing of them."""
        if self.evaluate_epsilon is None:
            self._unused(OF_EVALUATION, "unless evaluations are answered, by an evaluate.epsilon")
            return
        rule = "left out where evaluations are answered: the account of the crowd does not have them"
        require(not self.secret_order, "participation", self.participation, rule)
        if self.evaluate_releases is None and self.releases is None:
            raise InvalidParameter.of("evaluate_releases", "given where the mechanism's strength is")
        self.update_target  # noqa: B018 - refused now, if the budget is too small

    @property
    def evaluation(self) -> Evaluation | None:
        """What is asked about the model; None where nothing is."""
        if self.evaluate_epsilon is None:
            return None
        known = {name.removeprefix("evaluate_"): getattr(self, name) for name in OF_EVALUATION}
        given = {"releases": self.releases} | {name: value for name, value in known.items() if value is not None}
        return Evaluation(self.evaluate_epsilon, **given, adjacency=self.adjacency, unit=self.unit)

    @cached_property
    def update_target(self) -> Target:
        """What all updates of a client may cost: the budget, less what is set aside for evaluations."""
        asked = self.evaluation
        return self.target if asked is None else self.target.without(asked.spends)

    @classmethod
    def read(cls, table: Mapping[str, Any], prefix: str = "", **fixed: Any) -> Plan:
        """Read a table of the keys above, each after ``prefix``; an unknown or a missing key is refused.

        With a prefix, keys that do not begin like it are somebody else's. ``fixed`` is what the table does not say.
        """
        known = {prefix + key: name for name, key in KEYS.items()}
        ours = {}
        flat = [
            (f"{key}.{inner}", part) if inner else (key, part)
            for key, value in table.items()
            for inner, part in (value.items() if isinstance(value, Mapping) else [("", value)])
        ]
        for key, value in flat:
            if not prefix or key.lower().startswith(prefix[:-1]):
                check_known(key, known, "run-config key" if prefix else "key of the plan", prefix)
                ours[known[key]] = value
        needed = [one.name for one in attrs.fields(cls) if one.default is attrs.NOTHING]
        needed += ["epsilon"] if fixed.get("mode") == "adaptive" else []
        missing = [prefix + KEYS[name] for name in needed if name not in ours]
        if missing:
            raise InvalidParameter(f"{', '.join(missing)} must be given.")
        with _spelt(prefix):
            return cls(**ours, **fixed)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Plan:
        """Read what an engine's config says after ``quietbit.``: a plan that nodes enforce."""
        return cls.read(config, PREFIX, mode="adaptive")

    def to_run_config(self) -> dict[str, bool | float | int | str]:
        """Return the flat config that an engine reads this plan from; what is None is left out."""
        values = attrs.asdict(self, filter=lambda one, value: value is not None and one.name not in OF_SIMULATION)
        return {
            PREFIX + KEYS[name]: value.value if isinstance(value, Enum) else value
            for name, value in values.items()
            if name in KEYS
        }

    @property
    def target(self) -> Target:
        """What may be lost in the run; without a budget, nothing limits it."""
        epsilon = float("inf") if self.epsilon is None else self.epsilon
        return Target(
            epsilon, self.delta, self.adjacency, unit=self.unit, trust=self.trust, releases=self.releases or 1
        )

    @property
    def private(self) -> bool:
        """Whether there is a mechanism at all."""
        return self.mechanism != PUBLIC

    @property
    def calibrated(self) -> bool:
        """Whether the mechanism's strength is to be found from the budget."""
        return self.private and self.design_epsilon is None and self.noise_multiplier is None

    @property
    def secure(self) -> bool:
        """Whether the server sees sums alone."""
        return self.trust is Trust.SECURE_AGGREGATION

    @property
    def active(self) -> bool:
        """Whether sums are secret from a server that lies."""
        return self.server == ServerModel.ACTIVE.value

    @property
    def replayed(self) -> bool:
        """Whether clients replay rounds from broadcasts instead of getting the model."""
        return self.downlink == REPLAY

    @property
    def server_step(self) -> ServerStep:
        """How a round's mean changes the model that clients replay, where the engine's strategy does not say."""
        return ServerStep(1.0 if self.server_rate is None else self.server_rate, self.server_momentum or 0.0)

    @property
    def shared(self) -> bool:
        """Whether all clients of a round keep the same rows."""
        return self.replayed or self.rows == SHARED or (self.secure and self.keep is not None)

    @property
    def _knows_rows(self) -> bool:
        """Whether the family keeps few coordinates by itself."""
        return self.mechanism not in (AUTO, PUBLIC) and "rows" in family(self.mechanism).uses

    @property
    def secret_order(self) -> bool:
        """Whether every client takes part once per epoch, in an order that nobody else knows."""
        return self.participation == SECRET

    def stays_local(self, name: str) -> bool:
        """Whether an array of this name is never sent."""
        patterns = [pattern.strip() for pattern in self.local_arrays.split(",")]
        return any(fnmatchcase(name, pattern) for pattern in patterns if pattern)

    def moving_clip(self) -> MovingClip | None:
        """The clip at the start of a run; None where it stays."""
        if self.clip_quantile is None:
            return None
        return MovingClip.from_start(self.clip, quantile=self.clip_quantile, rate=cast(float, self.clip_rate))

    def schedule(self, clients: int) -> Schedule:
        """Who takes part in which round, among ``clients``."""
        return Schedule(self.participation, clients, self.cohort, self.seed)

    def mechanism_for(
        self, dimension: int, sizes: NDArray[np.int64] | None = None, releases: int | NDArray[np.int64] | None = None
    ) -> Mechanism:
        """The mechanism for updates of this dimension.

        Args:
            dimension: entries of an update.
            sizes: the samples of each client; needed where samples are protected.
            releases: how often each client takes part, or all of them alike; the plan's own unless given.
        """
        if self.mode == "adaptive":
            return _remembered(self, dimension)
        return self._mechanism(dimension, sizes, releases)

    def _mechanism(
        self, dimension: int, sizes: NDArray[np.int64] | None, releases: int | NDArray[np.int64] | None
    ) -> Mechanism:
        if not self.private:
            raise InvalidParameter("A plan without privacy has no mechanism.")
        ball = Ball(self.norm, self.clip, dimension)
        sample = self.unit is Unit.SAMPLE
        if self.samples is not None:
            sizes = np.array([self.samples], dtype=np.int64)
        if sample and sizes is None:
            raise InvalidParameter("sizes must be given where samples are protected: the samples of each client.")
        known = np.ones(1, dtype=np.int64) if sizes is None else np.asarray(sizes, dtype=np.int64)
        if not self.calibrated:
            if self.samples is not None:
                expected = max(1, int(self.samples * cast(float, self.sampling_rate)))
                return site_release(self._given(ball, expected), self.samples, **self._site())
            found = self._given(ball, int(known.min()) if sample else 1)
            return found if self.clip_bit_epsilon is None else AdaptiveClip(found, self.clip, self.clip_bit_epsilon)
        times = self.releases if releases is None else releases
        if times is None:
            raise InvalidParameter.of("releases", "given to meet a budget: how often a client may take part")
        counts = np.asarray(times, dtype=np.int64)
        return self._found(ball, known, np.broadcast_to(counts, known.shape) if sample else counts)

    def release(self, mechanism: Mechanism, samples: int | None = None) -> Cost:
        """What one release costs under the plan's trust: of a client, or of one of its ``samples`` samples."""
        if self.samples is not None:
            samples = mechanism.batch
        if self.secure:
            return summable(mechanism).sum_privacy(cast(int, self.min_honest_clients), self.adjacency)
        return mechanism.privacy(self.adjacency, samples).under(trust=self.trust)

    def account(self, mechanism: Mechanism, sizes: NDArray[np.int64]) -> ClientCosts:
        """The account of a run with clients of these sizes; a mechanism without one is refused."""
        return ClientCosts(lambda samples: self.release(mechanism, samples), sizes, self.unit is Unit.SAMPLE)

    @property
    def _summed_clients(self) -> int:
        """The clients of a sum: the fewest in an engine, where it says so."""
        return self.cohort if self.threshold is None else self.threshold

    def _enforced(self, releases: int) -> Priced | None:
        """The account that nodes keep of ``releases`` releases; None where the mechanism's own is what counts."""
        if self.mode == "planned":
            return None
        account = Account(self.update_target, "adaptive")
        return lambda mechanism: account.spend(self.release(mechanism.priced_as), releases).guarantee()

    def _found(self, ball: Ball, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> Mechanism:
        """Calibrated to the budget."""
        aim, busiest = self.update_target, max(1, int(counts.max()))
        if self.secure:
            return calibrate_sum(
                ball=ball, epsilon=aim.epsilon, delta=aim.delta, adjacency=self.adjacency, clients=self._summed_clients,
                min_honest_clients=self.min_honest_clients, releases=busiest, bits=self.bits or 1,
                decoder=cast(Any, self.decoder or UNBIASED), rotate=self.rotate, keep=self.keep,
                account=self._enforced(busiest),
            ).mechanism  # fmt: skip
        sample = self.unit is Unit.SAMPLE

        def worst(mechanism: Mechanism) -> Guarantee:
            """What a sample of the most exposed client will have spent: the account that the run will keep."""
            account = self.account(mechanism, sizes)
            account.counts = counts
            return account.worst(self.delta)

        found = calibrate(
            CENTRAL if self.trust is Trust.CENTRAL else self.mechanism, ball=ball, epsilon=aim.epsilon,
            delta=aim.delta, adjacency=self.adjacency, releases=busiest,
            account=worst if sample and self.samples is None else self._enforced(busiest),
            samples=int(sizes.min()) if sample else None, keep=self.keep, rows=SHARED if self.shared else self.rows,
            bit_epsilon=self._bit_epsilon(busiest), **self._site(), **self._choices(),
        )  # fmt: skip
        return self._used_up(found, int(sizes.min())) if sample else found.mechanism

    def _site(self) -> dict[str, Any]:
        """How a site draws batches, as `calibrate` has it; nothing where it draws none."""
        names = ("sampling_rate", "local_steps", "local_rate", "local_bits") if self.samples is not None else ()
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _used_up(self, found: Calibration, samples: int) -> Mechanism:
        """The mechanism, refused where it cannot make use of the budget."""
        if found.saturated:
            raise InvalidParameter.of(
                "beta",
                f"above {self.beta or 1.0:g} to make use of epsilon {self.epsilon:g}: one of {samples} samples moves "
                f"an input by little, and {self.mechanism} can reveal no more of it",
            )
        return found.mechanism

    def _bit_epsilon(self, releases: int) -> float | None:
        """What the bit of a clip that moves costs in a release; None where the clip stays."""
        if self.clip_quantile is None or self.clip_bit_epsilon is not None:
            return self.clip_bit_epsilon
        return usual_bit_epsilon(self.update_target.epsilon, self.update_target.delta, releases)

    def _given(self, ball: Ball, samples: int) -> Mechanism:
        """Built as told."""
        chosen, given, sample = family(self.mechanism), self._choices(), self.unit is Unit.SAMPLE
        noise = chosen.strength == "noise_multiplier"
        strength = cast(float, self.noise_multiplier) / samples if noise else cast(float, self.design_epsilon)
        if self.secure and (self.bits or 1) > 1:
            # Sums of codes of several bits need evenly spaced values, which a solved design does not have.
            given["design"] = binomial_design(cast(int, self.bits), strength)
        own = self.keep if "keep" in chosen.uses else None  # others keep coordinates by a wrapper

        rows = (SHARED if self.shared else self.rows) if self._knows_rows else None
        keep = None if own is not None else self.keep

        def built(within: Ball) -> Mechanism:
            choices = Choices(**given, keep=own, rows=rows, rotated=keep is not None, by_sample=sample)
            return chosen.given(within, strength, choices)

        if keep is None:
            return built(ball)
        found = project(ball, keep, built)
        found = found.at(0) if self.shared else found
        return ProjectedSamples(found) if sample else found

    def _choices(self) -> dict[str, Any]:
        """What the family of the mechanism makes use of; the rest of the plan's defaults is nobody's choice."""
        uses = () if self.mechanism == AUTO else family(self.mechanism).uses
        return {name: getattr(self, name) for name in uses if name in USUAL}


# The one table of keys: a field's name in Python, and as it is written in a file or a config.
KEYS = {
    one.name: one.name.replace("evaluate_", "evaluate.").replace("_", "-")
    for one in attrs.fields(Plan)
    if one.name != "mode"
}


@lru_cache(maxsize=8)
def _remembered(plan: Plan, dimension: int) -> Mechanism:
    """The mechanism of an engine's plan, which server and tests ask for more than once."""
    with _spelt(PREFIX):
        return plan._mechanism(dimension, None, None)


@contextmanager
def _spelt(prefix: str) -> Iterator[None]:
    """Let a refusal name the key as whoever wrote the table knows it."""
    try:
        yield
    except InvalidParameter as error:
        name = BELOW.get(error.name, error.name)
        if name not in KEYS:
            raise
        raise error.renamed(prefix + KEYS[name]) from None
    except QuietbitError:
        raise
    except (ArithmeticError, ValueError) as error:  # numbers so large or small that no account can hold them
        raise InvalidParameter(f"No mechanism can be found for these numbers ({type(error).__name__}).") from error
