"""The plan of a private run: one frozen value that simulator, engines, nodes and reports read.

Idea     whoever starts a run states what may leave a client, what it may cost, who takes part and who may see what.
         The mechanism (with the strength given, or calibrated on the account that will be enforced) and the cost of
         one release follow from these choices alone, so they cannot disagree. A choice without effect is refused, so
         no record claims a number that was not used. A plan is made in Python, or read from a table: TOML, or the
         config of Flower or NVFlare, by the keys of docs/reference/plan.md.
Symbols  the budget is ``epsilon`` at ``delta``, for all releases of one client together; ``design_epsilon`` is the
         epsilon of a design.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache, partial
from typing import Any, cast, final

import attrs
import numpy as np
from attrs import converters, field, frozen
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit.design.closed_form import binomial_design
from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_known, check_real, require
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.batch import site_release
from quietbit.mechanism.calibrate import AUTO, calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import SHARED, Choices
from quietbit.mechanism.interpolated import UNBIASED
from quietbit.mechanism.projected import MOST_SAMPLES, ProjectedSamples, project
from quietbit.mechanism.registry import family
from quietbit.plan import rules
from quietbit.plan.clip import MovingClip
from quietbit.plan.costs import ClientCosts
from quietbit.plan.evaluation import Evaluation
from quietbit.plan.participation import EACH_ONCE, KINDS, POISSON, SECRET, Schedule
from quietbit.privacy.account import Account, Mode
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.privacy.subsampling import poisson_cost
from quietbit.secagg.plan import ServerModel
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit, check_delta, check_releases
from quietbit.wire.downlink import BITS, ServerStep

__all__ = ["KEYS", "PREFIX", "Plan"]

Priced = Callable[[Mechanism], Guarantee]

MOST_LATE = 1000  # rounds, each of which keeps its sums until then
PREFIX = "quietbit."  # prefix of the keys in an engine's config
ROOM = 1e-4  # share of epsilon that updates leave to the rounding of an account of answers that would have none left
LEAST_TRUTH, MOST_TRUTH = 1e-4, 1 - 1e-9  # of scouts' answers
# Names that the layers below use for a key's value.
BELOW = {
    "radius": "clip", "norm of the ball": "norm", "output_bits": "bits", "input_levels": "levels",
    "server model": "server", "rate": "server_rate", "momentum": "server_momentum",
}  # fmt: skip


def _clip(value: float | str) -> float:
    if value != AUTO:  # rules put a number in its place
        check_real(value, "clip")
    return cast(float, value)  # as it is given, by which stored runs are named


def _names(value: str | list[str] | tuple[str, ...]) -> str:
    names = ", ".join(value) if isinstance(value, list | tuple) else value
    require(isinstance(names, str), "local_arrays", value, "text: names with commas between them")
    return names


def _read(read: Callable[[Any, str], Any], default: Any = None) -> Any:
    """Return a field that `rules.check` reads by ``read(value, name)``; None is left out, where it is the default."""
    return field(default=default, metadata={"read": read})


def _one_of(*known: Any) -> Any:
    def read(value: Any, name: str) -> Any:
        require(value in known, name, value, "one of " + ", ".join(map(str, known)))
        return value

    return read


_positive, _clients = partial(check_int, low=1), partial(check_int, low=2, high=MOST_CLIENTS)


@final
@frozen
class Plan:
    """Mechanism, budget, participation and trust of a run; docs/reference/plan.md explains every field.

    ``mechanism`` is the name of a family, ``auto`` for the best one under the plan's budget and trust (`mechanism_for`
    returns it), or ``none`` for a run without privacy. Its strength is ``design_epsilon`` or ``noise_multiplier``,
    depending on the family. Without one, it is calibrated so that all releases of the most frequent client together
    meet the budget; with one, a run stops before it exceeds the budget.

    ``mode`` is the account that is enforced and calibrated on: ``planned``, where all releases are of one mechanism
    fixed beforehand, as in a simulation; or ``adaptive``, as nodes keep it, who do not trust a server that the next
    mechanism will be the same. A plan that is read from an engine's config is adaptive.

    >>> plan = Plan("gaussian", clip=1.0, adjacency="zero-out", epsilon=2.0, releases=7)
    >>> plan.target.delta, round(plan.mechanism_for(dimension=30).noise_multiplier, 2)
    (1e-05, 5.28)
    """

    mechanism: str
    clip: float = field(converter=_clip)
    adjacency: Adjacency = field(converter=Adjacency)
    norm: Norm = field(default=Norm.L2, converter=Norm)
    epsilon: float | None = _read(check_real)
    delta: float = field(default=1e-5, converter=check_delta)
    unit: Unit = field(default=Unit.CLIENT, converter=Unit)
    trust: Trust = field(default=Trust.LOCAL, converter=Trust)
    releases: int | None = field(default=None, converter=converters.optional(check_releases))
    cohort: int = _read(_positive, 1)
    most_examples: int | None = _read(_positive)
    arrivals: int | None = _read(_positive)
    staleness: int | None = _read(partial(check_int, low=0, high=MOST_LATE))
    participation: str = _read(_one_of(*KINDS), EACH_ONCE)
    min_honest_clients: int | None = _read(_clients)
    design_epsilon: float | None = _read(check_real)
    noise_multiplier: float | None = _read(check_real)
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    rotate: bool | None = None
    rng: str = _read(_one_of("secure", "seeded"), "secure")
    seed: int = _read(partial(check_int, low=0), 0)
    keep: int | str | None = None
    rows: str | None = None
    downlink: str = _read(_one_of(rules.FULL, rules.REPLAY), rules.FULL)
    downlink_bits: int | None = _read(_one_of(*BITS))
    downlink_start: str | None = _read(_one_of(rules.SERVER, rules.APP))
    server_rate: float | None = None
    server_momentum: float | None = None
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_scouts: int | None = _read(partial(check_int, low=2))
    evaluate_epsilon: float | None = None
    evaluate_metric: str | None = None
    evaluate_most: float | None = None
    evaluate_cells: int | None = None
    evaluate_releases: int | None = None
    samples: int | None = _read(partial(check_int, low=1, high=MOST_SAMPLES))
    sampling_rate: float | None = _read(partial(check_real, at_most=1.0))
    local_steps: int | None = None
    local_rate: float | None = None
    local_bits: int | None = None
    local_arrays: str = field(default="", converter=_names)
    server: str | None = None
    threshold: int | None = _read(_clients)
    neighbours: int | None = _read(_clients)
    share_threshold: int | None = _read(partial(check_int, low=2))
    timeout: float | None = _read(check_real)
    mode: Mode = _read(_one_of("planned", "adaptive"), "planned")  # noqa: RUF009

    def __attrs_post_init__(self) -> None:
        """Refuse unknown words, numbers out of range, and choices without effect."""
        rules.check(self)

    @classmethod
    def read(cls, table: Mapping[str, Any], prefix: str = "", **fixed: Any) -> Plan:
        """Read a table of keys, each after ``prefix``; an unknown or a missing key is refused.

        With a prefix, keys without it are ignored. ``fixed`` gives fields that the table does not contain.
        """
        known, ours = {prefix + key: name for name, key in KEYS.items()}, {}
        for outer, value in table.items():
            for inner, part in value.items() if isinstance(value, Mapping) else [("", value)]:
                key = f"{outer}.{inner}" if inner else outer
                if not prefix or key.lower().startswith(prefix[:-1]):
                    check_known(key, known, "run-config key" if prefix else "key of the plan", prefix)
                    ours[known[key]] = part
        needed = [one.name for one in attrs.fields(cls) if one.default is attrs.NOTHING]
        missing = [prefix + KEYS[name] for name in needed if name not in ours]
        if missing:
            raise InvalidParameter(f"{', '.join(missing)} must be given.")
        with _spelt(prefix):
            return cls(**ours, **fixed)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Plan:
        """Read the keys of an engine's config that start with ``quietbit.``: a plan that nodes enforce."""
        return cls.read(config, PREFIX, mode="adaptive")

    def to_run_config(self) -> dict[str, bool | float | int | str]:
        """Return the flat config from which an engine reads this plan; fields that are None are left out."""
        values = {name: getattr(self, name) for name in KEYS if name not in rules.OF_SIMULATION}
        known = {name: value for name, value in values.items() if value is not None}
        return {PREFIX + KEYS[name]: getattr(value, "value", value) for name, value in known.items()}

    @property
    def evaluation(self) -> Evaluation | None:
        """The question asked about the model, or None."""
        if self.evaluate_epsilon is None:
            return None
        names = [name for name in rules.OF_EVALUATION if getattr(self, name) is not None]
        known = {"releases": self.releases} | {name.removeprefix("evaluate_"): getattr(self, name) for name in names}
        known |= {"delta": self.delta, "honest": self.min_honest_clients} if self.secure else {}
        return Evaluation(self.evaluate_epsilon, **known, adjacency=self.adjacency, unit=self.unit)

    @cached_property
    def update_target(self) -> Target:
        """The budget of all updates of a client: the run's, less what is set aside for evaluations."""
        asked = self.evaluation
        return self.target if asked is None else self.target.without(asked.spends)

    @property
    def target(self) -> Target:
        """The target of the run; unlimited without a budget."""
        epsilon = float("inf") if self.epsilon is None else self.epsilon
        return Target(
            epsilon, self.delta, self.adjacency, unit=self.unit, trust=self.trust, releases=self.releases or 1
        )

    @property
    def private(self) -> bool:
        """Whether there is a mechanism."""
        return self.mechanism != rules.PUBLIC

    @property
    def calibrated(self) -> bool:
        """Whether the mechanism's strength is derived from the budget."""
        return self.private and self.design_epsilon is None and self.noise_multiplier is None

    @property
    def secure(self) -> bool:
        """Whether the server sees only sums."""
        return self.trust is Trust.SECURE_AGGREGATION

    @property
    def active(self) -> bool:
        """Whether sums are secret from a malicious server."""
        return self.server == ServerModel.ACTIVE.value

    @property
    def replayed(self) -> bool:
        """Whether clients replay rounds from broadcasts instead of downloading the model."""
        return self.downlink == rules.REPLAY

    @property
    def server_step(self) -> ServerStep:
        """The server's step on the model that clients replay, unless the engine's strategy defines it."""
        return ServerStep(1.0 if self.server_rate is None else self.server_rate, self.server_momentum or 0.0)

    @property
    def shared(self) -> bool:
        """Whether all clients of a round keep the same rows."""
        return self.replayed or self.rows == SHARED or (self.secure and self.keep is not None)

    @property
    def knows_rows(self) -> bool:
        """Whether the family itself, without a wrapper, keeps few coordinates."""
        return self.mechanism not in (AUTO, rules.PUBLIC) and "rows" in family(self.mechanism).uses

    @property
    def secret_order(self) -> bool:
        """Whether every client takes part once per epoch, in a secret order."""
        return self.participation == SECRET

    def stays_local(self, name: str) -> bool:
        """Return whether an array of this name is never sent."""
        patterns = [pattern.strip() for pattern in self.local_arrays.split(",")]
        return any(fnmatchcase(name, pattern) for pattern in patterns if pattern)

    def moving_clip(self) -> MovingClip | None:
        """Return the moving clip at the start of a run; None where the clip is fixed."""
        if self.clip_quantile is None:
            return None
        return MovingClip.from_start(self.clip, quantile=self.clip_quantile, rate=cast(float, self.clip_rate))

    def schedule(self, clients: int) -> Schedule:
        """Return the participation of ``clients`` clients: who takes part in which round."""
        return Schedule(self.participation, clients, self.cohort, self.seed, self.releases)

    def mechanism_for(
        self, dimension: int, sizes: NDArray[np.int64] | None = None, releases: int | NDArray[np.int64] | None = None
    ) -> Mechanism:
        """Return the mechanism for updates of ``dimension`` entries.

        ``sizes`` are the samples of each client, needed where the privacy unit is a sample; ``releases`` is how often
        each client takes part, or one number for all, the plan's by default.
        """
        if self.mode == "adaptive":
            return _remembered(self, dimension)
        return self._mechanism(dimension, sizes, releases)

    def _mechanism(
        self, dimension: int, sizes: NDArray[np.int64] | None, releases: int | NDArray[np.int64] | None
    ) -> Mechanism:
        if not self.private:
            raise InvalidParameter("A plan without privacy has no mechanism.")
        ball, sample = Ball(self.norm, self.clip, dimension), self.unit is Unit.SAMPLE
        if self.samples is not None:
            sizes = np.array([self.samples], dtype=np.int64)
        if sample and sizes is None:
            raise InvalidParameter("sizes must be given where samples are protected: the samples of each client.")
        known = np.ones(1, dtype=np.int64) if sizes is None else np.asarray(sizes, dtype=np.int64)
        if not self.calibrated:
            if self.samples is not None:
                expected = max(1, int(self.samples * cast(float, self.sampling_rate)))
                return site_release(self._given(ball, expected), self.samples, **self._site())
            return self._given(ball, int(known.min()) if sample else 1)
        times = self.releases if releases is None else releases
        if times is None:
            raise InvalidParameter.of("releases", "given to meet a budget: how often a client may take part")
        counts = np.asarray(times, dtype=np.int64)
        each = sample or self.participation == POISSON
        counts = np.broadcast_to(counts, known.shape) if each else counts
        aim = self.update_target
        if self.clip_scouts is None:
            return self._found(aim, ball, known, counts)
        for room in (0.0, ROOM):
            less = attrs.evolve(aim, epsilon=aim.epsilon * (1 - room))
            moving = self._scouted(self._found(less, ball, known, counts), max(1, int(counts.max())))
            if moving is not None:
                return moving
        raise InvalidParameter.of("epsilon", "large enough that the answer of a scout says something", self.epsilon)

    def release(self, mechanism: Mechanism, samples: int | None = None) -> Cost:
        """Return the cost of one release under the plan's trust, to a client or to one of its ``samples`` samples."""
        if self.samples is not None:
            samples = mechanism.batch
        if self.secure:
            return summable(mechanism).sum_privacy(cast(int, self.min_honest_clients), self.adjacency)
        return mechanism.privacy(self.adjacency, samples).under(trust=self.trust)

    def account(self, mechanism: Mechanism, sizes: NDArray[np.int64]) -> ClientCosts:
        """Return the account of a run with clients of these sizes; refuse a mechanism without one."""
        rate = self.schedule(sizes.size).rate if self.participation == POISSON else 1.0

        @cache
        def price(samples: int | None) -> Cost:
            far = self.release(mechanism, samples)
            return far if rate == 1.0 else poisson_cost(mechanism.privacy(Adjacency.ZERO_OUT), far, rate)

        return ClientCosts(price, sizes, self.unit is Unit.SAMPLE)

    @property
    def updates(self) -> int:
        """The number of updates per round of a simulation: the cohort without its scouts."""
        return self.cohort - (0 if self.clip_scouts is None else self.cohort // self.clip_scouts)

    @property
    def summed_clients(self) -> int:
        """The number of clients in a sum: the smallest possible in an engine, where one is given."""
        return self.updates if self.threshold is None else self.threshold

    def _enforced(self, releases: int) -> Priced | None:
        """Return the account nodes keep of ``releases`` releases; None where the mechanism's own account applies."""
        if self.mode == "planned":
            return None
        account, asked = Account(self.update_target, "adaptive"), self.evaluation
        answers = () if asked is None else asked.shared()

        def enforced(mechanism: Mechanism) -> Guarantee:
            spent = account.spend(self.release(mechanism.priced_as), releases)
            for cost, times in answers:
                spent = spent.spend(cost, times)
            return spent.guarantee()

        return enforced

    def _found(self, aim: Target, ball: Ball, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> Mechanism:
        """Return the mechanism calibrated to a budget."""
        busiest = max(1, int(counts.max()))
        if self.secure:
            return calibrate_sum(
                ball=ball, epsilon=aim.epsilon, delta=aim.delta, adjacency=self.adjacency, clients=self.summed_clients,
                min_honest_clients=self.min_honest_clients, releases=busiest, bits=self.bits or 1,
                decoder=cast(Any, self.decoder or UNBIASED), rotate=self.rotate, keep=self.keep,
                account=self._enforced(busiest),
            ).mechanism  # fmt: skip
        sample = self.unit is Unit.SAMPLE

        def worst(mechanism: Mechanism) -> Guarantee:
            """Return the guarantee of a sample of the most exposed client, by the account the run will keep."""
            account = self.account(mechanism, sizes)
            account.counts = counts
            return account.worst(self.delta)

        on_run = (sample and self.samples is None) or self.participation == POISSON
        found = calibrate(
            rules.CENTRAL if self.trust is Trust.CENTRAL else self.mechanism, ball=ball, epsilon=aim.epsilon,
            delta=aim.delta, adjacency=self.adjacency, releases=busiest,
            account=worst if on_run else self._enforced(busiest),
            samples=int(sizes.min()) if sample else None, keep=self.keep, rows=SHARED if self.shared else self.rows,
            **self._site(), **self._choices(),
        )  # fmt: skip
        if sample and found.saturated:
            why = f"one of {sizes.min()} samples moves an input by little, and {self.mechanism} can reveal no more"
            rule = f"above {self.beta or 1.0:g} to make use of epsilon {self.epsilon:g}: {why}"
            raise InvalidParameter.of("beta", rule)
        return found.mechanism

    def _site(self) -> dict[str, Any]:
        """Return the batch options of a site for `calibrate`; empty where it draws no batches."""
        names = ("sampling_rate", "local_steps", "local_rate", "local_bits") if self.samples is not None else ()
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _scouted(self, found: Mechanism, releases: int) -> AdaptiveClip | None:
        """Make the clip of a mechanism move, by scouts as truthful as its budget allows; return None without room.

        A client's releases may be updates or answers, in any order: the account is that of the larger of the two costs.
        """
        enforced = self._enforced(releases)

        def moving(truth: float) -> AdaptiveClip:
            return AdaptiveClip(found, self.clip, self.clip_scouts, truth)

        def within(truth: float) -> bool:
            sent = moving(truth)
            spent = enforced(sent) if enforced else (self.release(sent) * releases).guarantee(self.delta)
            return spent.epsilon_upper <= self.update_target.epsilon

        if not within(LEAST_TRUTH):
            return None
        return moving(bisect(within, LEAST_TRUTH, MOST_TRUTH, relative=1e-4))

    def _given(self, ball: Ball, samples: int) -> Mechanism:
        """Build the mechanism with the strength that the plan gives."""
        chosen, given, sample = family(self.mechanism), self._choices(), self.unit is Unit.SAMPLE
        noise = chosen.strength == "noise_multiplier"
        strength = cast(float, self.noise_multiplier) / samples if noise else cast(float, self.design_epsilon)
        if self.secure and (self.bits or 1) > 1:
            # Sums of codes of several bits need evenly spaced values, which a solved design does not have.
            given["design"] = binomial_design(cast(int, self.bits), strength)
        own = self.keep if "keep" in chosen.uses else None  # other families keep coordinates by a wrapper
        keep = None if own is not None else self.keep
        rows = (SHARED if self.shared else self.rows) if self.knows_rows else None
        choices = Choices(**given, keep=own, rows=rows, rotated=keep is not None, by_sample=sample)
        if keep is None:
            return chosen.given(ball, strength, choices)
        found = project(ball, keep, lambda within: chosen.given(within, strength, choices))
        found = found.at(0) if self.shared else found
        return ProjectedSamples(found) if sample else found

    def _choices(self) -> dict[str, Any]:
        """Return the choices that the mechanism's family uses; the plan's other defaults were not chosen."""
        uses = () if self.mechanism == AUTO else family(self.mechanism).uses
        return {name: getattr(self, name) for name in uses if name in rules.USUAL}


# The one table of keys: a field's name in Python, and its spelling in a file or a config.
KEYS = {
    one.name: one.name.replace("evaluate_", "evaluate.").replace("_", "-")
    for one in attrs.fields(Plan)
    if one.name != "mode"
}


@lru_cache(maxsize=8)
def _remembered(plan: Plan, dimension: int) -> Mechanism:
    """Return the mechanism of an engine's plan, cached because callers ask for it repeatedly."""
    with _spelt(PREFIX):
        return plan._mechanism(dimension, None, None)


@contextmanager
def _spelt(prefix: str) -> Iterator[None]:
    """Make a refusal name the key as it is spelt in the table."""
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
