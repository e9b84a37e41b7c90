"""The plan of a run: what may leave a client, what it may cost, and which capabilities the run has.

Idea     a plan is a target (epsilon, delta, adjacency, trust, releases), a mechanism, a clip, and
         sections. A section that is absent is off; each checks itself, and what two may not do
         together is one list (`PAIRS`). A choice without effect is refused, so that no record
         claims a number that was not used. A plan is made in Python, or read from a table: TOML, or
         the flat config of Flower or NVFlare (docs/reference/plan.md has the keys).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, Self, cast, final

import attrs
from attrs import field, frozen

from quietbit.errors import InvalidParameter, QuietbitError, check_current, check_known, require
from quietbit.federation.fields import check_fields
from quietbit.federation.mechanism import mechanism_of, release_cost
from quietbit.federation.parts.adaptive_clip import EVERY, EVERY_OF_SUMS, AdaptiveClipping
from quietbit.federation.parts.evaluation import Evaluate, Evaluation
from quietbit.federation.parts.replay import Replay
from quietbit.federation.parts.samples import Samples
from quietbit.federation.parts.secure_aggregation import SecureAggregation
from quietbit.federation.parts.stragglers import Stragglers
from quietbit.federation.parts.subspace import InSubspace
from quietbit.federation.parts.weights import Weights
from quietbit.federation.terms import (
    CENTRAL,
    PREFIX,
    Counts,
    MechanismChoice,
    Priced,
    Section,
    Table,
    Terms,
    given,
    left_out,
)
from quietbit.mechanism.base import PRICED_BY_SAMPLE, Mechanism
from quietbit.mechanism.registry import AUTO, family
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Trust

__all__ = ["KEYS", "PAIRS", "PREFIX", "SECTIONS", "Pair", "Plan", "named_mechanisms"]

START = 1.0  # the first clip, where it follows scouts
ALIKE = 0.85  # of the names of two tables: one is probably the other misspelt
SECTIONS: tuple[type[Section], ...] = (
    MechanismChoice,
    SecureAggregation,
    Samples,
    AdaptiveClipping,
    Evaluate,
    Weights,
    InSubspace,
    Replay,
    Stragglers,
)  # the first is always there; parts of a run act in this order
# Names that the layers below use for a key's value.
BELOW = {
    "norm of the ball": "mechanism.norm",
    "norm": "mechanism.norm",
    "output_bits": "mechanism.bits",
    "input_levels": "mechanism.levels",
}


def _table(value: Table) -> Any:
    """Return what a section is read from, once the plan has all of them."""
    return value


@frozen
class Plan(Terms):
    """All choices of a run, fixed before data is seen; docs/reference/plan.md explains every key.

    ``mechanism`` is the name of a family, ``auto``, ``none``, or a `MechanismChoice`. Without a
    strength it is calibrated so that all releases of the most frequent client together meet the
    budget; with one, a run stops before it exceeds the budget. ``clip="auto"`` starts at 1 and
    follows scouts.

    The account that is calibrated on is the one that nodes keep, who do not trust a server that the
    next mechanism will be the same. `quietbit.federation.simulate.SimulatedPlan` has what a run
    without nodes needs besides.

    >>> plan = Plan("gaussian", clip=1.0, adjacency="zero-out", epsilon=2.0, releases=7)
    >>> plan.target.delta, round(plan.mechanism_for(dimension=30).noise_multiplier, 2)
    (1e-05, 5.31)
    """

    secure_aggregation: SecureAggregation | None = field(default=None, converter=_table)
    samples: Samples | None = field(default=None, converter=_table)
    adaptive_clip: AdaptiveClipping | None = field(default=None, converter=_table)
    evaluate: Evaluate | None = field(default=None, converter=_table)
    replay: Replay | None = field(default=None, converter=_table)
    weights: Weights | None = field(default=None, converter=_table)
    stragglers: Stragglers | None = field(default=None, converter=_table)
    subspace: InSubspace | None = field(default=None, converter=_table)

    def __attrs_post_init__(self) -> None:
        """Check every field, fill in what follows from others, and refuse what does not fit."""
        for section in SECTIONS[1:]:
            table = getattr(self, section.title)
            object.__setattr__(self, section.title, section.optional(table))
        check_fields(self)
        self.complete()
        _check_pairs(self)
        self.check_run()
        _check_strength(self)
        _check_trust(self)
        for present in self.sections:
            present.check_plan(self)

    def check_run(self) -> None:
        """Refuse a plan that the engine of a run could not follow."""
        require(self.private, "mechanism", self.mechanism.name, "a private mechanism")
        fits = self.trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION)
        require(fits, "trust", self.trust.value, "local or secure-aggregation")
        given(self, "epsilon", ": what all releases of one client together may cost")
        if self.mechanism.calibrated:
            rule = ": how often a client may answer; or set the mechanism's strength"
            given(self, "releases", rule)
        else:
            left_out(self, ["releases"], "where the mechanism's strength is given")
        for section in self.sections:
            section.check_engine(self)

    def complete(self) -> None:
        """Fill in what is left out and follows from other choices."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if cast(Any, self.clip) == AUTO:
            put("clip", START)
            if self.adaptive_clip is None:
                put("adaptive_clip", AdaptiveClipping())
        if self.secure_aggregation is not None and self.trust is Trust.LOCAL:
            put("trust", Trust.SECURE_AGGREGATION)
        if self.secure_aggregation is None and self.trust is Trust.SECURE_AGGREGATION:
            put("secure_aggregation", SecureAggregation())
        if self.adaptive_clip is not None and self.adaptive_clip.every is None:
            every = EVERY if self.secure_aggregation is None else EVERY_OF_SUMS
            put("adaptive_clip", attrs.evolve(self.adaptive_clip, every=every))
        sums = self.secure_aggregation
        fewest = self.summed_clients
        if sums is not None and sums.honest_clients is None and (fewest or 0) >= 2:
            put("secure_aggregation", attrs.evolve(sums, honest_clients=fewest))
        site = self.samples
        if site is not None and site.dataset_size is not None and site.sampling_rate is None:
            put("samples", attrs.evolve(site, sampling_rate=1.0))

    @classmethod
    def read(cls, table: Mapping[str, Any], prefix: str = "", **fixed: Any) -> Self:
        """Read a table of keys, nested or flat; refuse an unknown or a missing key.

        With a ``prefix``, keys without it are ignored. ``fixed`` gives fields that the table does
        not contain.
        """
        values: dict[str, Any] = {}
        keys = keys_of(cls)
        for key, value in _flat(table):
            if prefix and not key.startswith(prefix[:-1]):
                _check_table(key, prefix[:-1])
                continue
            ours = key.removeprefix(prefix)
            section = ours.partition(".")[0]
            if ours not in keys:
                check_current(ours.replace("_", "-"), RENAMED, key)
                check_current(section, RENAMED, prefix + section)
            known = [prefix + name for name in keys]
            check_known(key, known, "run-config key" if prefix else "key of the plan", prefix)
            name, _, inner = ours.replace("-", "_").partition(".")
            _put(values, name, inner, value, key)
        missing = []
        for known_field in attrs.fields(cls):
            if known_field.default is attrs.NOTHING and known_field.name not in values:
                missing.append(prefix + known_field.name)
        if missing:
            raise InvalidParameter(
                f"{', '.join(missing)} must be given.", name=missing[0], rule="given"
            )
        with _spelt(prefix):
            return cls(**values, **fixed)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Plan:
        """Read the keys of an engine's config that start with ``quietbit.``; nodes enforce it."""
        return cls.read(config, PREFIX)

    @property
    def evaluation(self) -> Evaluation | None:
        """The request asked about the model, or None."""
        if self.evaluate is None:
            return None
        return self.evaluate.request(self)

    @property
    def summed_clients(self) -> int | None:
        """The fewest clients of a sum; None without sums."""
        return None if self.secure_aggregation is None else self.secure_aggregation.threshold

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections that are present, in the order in which their parts act."""
        present = (getattr(self, section.title) for section in SECTIONS)
        return tuple(section for section in present if section is not None)

    @cached_property
    def sections_of_clients(self) -> tuple[Section, ...]:
        """The sections that have a part on a client, of an update or of an evaluation."""
        asked = ("", Evaluate.title)
        return tuple(
            section
            for section in self.sections
            if any(section.client(self, what) is not None for what in asked)
        )

    def mechanism_for(self, dimension: int) -> Mechanism:
        """Return the mechanism for updates of ``dimension`` entries."""
        return _remembered(self, dimension)

    def account_of(self, sizes: Counts, releases: Counts) -> Priced | None:
        """Return the account that nodes keep."""
        account = Account(self.update_target, "adaptive")
        busiest = max(1, int(releases.max()))

        def enforced(mechanism: Mechanism) -> Guarantee:
            return account.spend(self.release(mechanism.priced_as), busiest).guarantee()

        return enforced

    def release(self, mechanism: Mechanism, samples: int | None = None) -> Cost:
        """Return the cost of one release, to a client or to one of its ``samples`` samples."""
        return release_cost(self, mechanism, samples)


@final
@frozen
class Pair:
    """A choice beside which all of ``others`` must be left out."""

    first: str
    others: tuple[str, ...]
    sentence: str


# What two choices may not do together; each name is a section, or a property of a plan.
PAIRS = (
    Pair("secure_aggregation", ("samples",), "a masked sum hides clients, not samples"),
    Pair("secure_aggregation", ("weights",), "a masked sum has no weights"),
    Pair("secure_aggregation", ("stragglers",), "a masked sum needs all its clients at once"),
    Pair(
        "adaptive_clip",
        ("samples",),
        "samples are clipped one by one, so a client has no single length",
    ),
    Pair("adaptive_clip", ("stragglers",), "a clip that moves needs all releases of a round"),
    Pair("central", ("samples",), "central trust protects clients"),
    Pair("central", ("adaptive_clip",), "a trusted server's noise has one clip"),
    Pair("central", ("replay", "weights"), "a trusted server takes and publishes a plain mean"),
    Pair("public", ("adaptive_clip", "weights", "replay"), "a run without privacy has no releases"),
    Pair("samples", ("subspace",), "gradients of samples go to the gate in full length"),
)
# Keys of earlier versions, and what became of them.
RENAMED = {
    "cohort": "gone: the engine's strategy chooses clients",
    "participation": "gone: the engine's strategy chooses clients",
    "rng": "gone: owners choose the randomness of their nodes",
    "seed": "gone: owners choose the randomness of their nodes",
    "arrivals": "now stragglers, in which releases that come late are in no mean",
    "masks": "now secure-aggregation",
    "masks.honest": "now secure-aggregation.honest-clients",
    "masks.neighbours": "gone: all clients of a sum exchange masks with all",
    "masks.server": "now secure-aggregation.adversary",
    "masks.share-threshold": "gone: all clients of a sum exchange masks with all",
    "mechanism.keep": "now mechanism.coordinates",
    "evaluate.cells": "now evaluate.bins",
    "evaluate.most": "now evaluate.upper-bound",
    "scouts": "now adaptive-clip",
    "samples.count": "now samples.dataset-size",
    "subspace.basis": "gone: the server sends the directions",
    "subspace.renewed": "gone: directions are made once, before the run",
    "subspace.seed": "gone: give the server the directions",
}
# How a choice that is not a section is spelt, and which key it is about.
SPELT = {
    "central": ("trust", "trust = central"),
    "public": ("mechanism", "mechanism = none"),
}


def _check_pairs(plan: Plan) -> None:
    for pair in PAIRS:
        for other in pair.others:
            if getattr(plan, pair.first) and getattr(plan, other):
                name = SPELT.get(other, (other, other))[0]
                first = SPELT.get(pair.first, (pair.first, pair.first))[1]
                raise InvalidParameter.of(name, f"left out beside {first}: {pair.sentence}")


def _check_strength(plan: Plan) -> None:
    """Require a strength, or a budget to derive it from."""
    chosen = plan.mechanism
    if not chosen.private:
        left_out(plan, ["epsilon", "releases"], "without privacy")
    if chosen.calibrated and plan.epsilon is None:
        rule = f"given to calibrate {chosen.name}"
        remedy = "or name a mechanism, and set mechanism.design-epsilon or .noise-multiplier"
        raise InvalidParameter.of("epsilon", rule, remedy=remedy)


def _check_trust(plan: Plan) -> None:
    """Refuse a mechanism without an account under the trust model."""
    rule = "local, central or secure-aggregation"
    require(plan.trust is not Trust.SHUFFLED, "trust", plan.trust.value, rule)
    if plan.trust is Trust.LOCAL:
        return
    name = plan.mechanism.name
    if plan.secure_aggregation is None:
        fits = name in (CENTRAL, AUTO)
        rule = CENTRAL
    else:
        # No other family is asked: a node may not import those that its policy does not list.
        fits = name == AUTO or (plan.mechanism.known and family(name).summable)
        rule = "imvu, or another family whose codes can be summed,"
    require(fits, "mechanism", name, f"{rule} under {plan.trust.value} trust")


def named_mechanisms(config: Mapping[str, Any]) -> list[Any]:
    """Return the mechanisms that an engine's config names, at most two, before it is read."""
    key = PREFIX + MechanismChoice.title
    keys = (key, f"{key}.{MechanismChoice.main}")
    return [value for name, value in _flat(config) if name in keys]


def _flat(table: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    """Return the keys of nested tables with dots between them."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{outer}{key}.")
        else:
            yield f"{outer}{key}", value


def _check_table(key: str, ours: str) -> None:
    """Refuse a key of a table whose name is nearly ours: it would be ignored."""
    table = key.partition(".")[0]
    if difflib.get_close_matches(table.lower(), [ours], 1, ALIKE):
        text = f"The run config has a table {table!r}: did you mean {ours!r}?"
        raise InvalidParameter(text, name=table, rule=ours)


def _put(values: dict[str, Any], name: str, inner: str, value: Any, key: str) -> None:
    """Add one key to the fields of a plan; a section grows by one of its own."""
    sections = {section.title: section for section in SECTIONS}
    if name not in sections:
        values[name] = value
        return
    if not inner:
        inner = sections[name].main
    if not inner:
        require(isinstance(value, bool), key, value, "true, false, or a table of its keys")
        values.setdefault(name, value)
        return
    known = values.get(name)
    values[name] = {**(known if isinstance(known, dict) else {}), inner: value}


def keys_of(kind: type[Plan]) -> dict[str, str]:
    """Return every key of a plan, and the field or ``section.field`` that it sets."""
    sections = {section.title: section for section in SECTIONS}
    keys = {}
    for known in attrs.fields(kind):
        keys[known.name.replace("_", "-")] = known.name
        if known.name in sections:
            for inner in attrs.fields(sections[known.name]):
                name = f"{known.name}.{inner.name}"
                keys[name.replace("_", "-")] = name
    return keys


KEYS = keys_of(Plan)
_OF_MECHANISM = {known.name: f"mechanism.{known.name}" for known in attrs.fields(MechanismChoice)}


@lru_cache(maxsize=8)
def _remembered(plan: Plan, dimension: int) -> Mechanism:
    """Return the mechanism of an engine's plan, cached because callers ask for it repeatedly."""
    with _spelt(PREFIX):
        try:
            return mechanism_of(plan, dimension, None, None)
        except InvalidParameter as error:
            if error.rule != PRICED_BY_SAMPLE:
                raise
            # by the name that the plan has for it, and not by that of a class
            name = plan.mechanism.name
            raise InvalidParameter.of(error.name, error.rule, name) from None


@contextmanager
def _spelt(prefix: str) -> Iterator[None]:
    """Make a refusal name the key as it is spelt in the table."""
    try:
        yield
    except InvalidParameter as error:
        name = BELOW.get(error.name, error.name)
        name = _OF_MECHANISM.get(name, name)
        key = name.replace("_", "-")
        if key not in KEYS:
            raise
        raise error.renamed(prefix + key) from None
    except QuietbitError:
        raise
    except (
        ArithmeticError,
        ValueError,
    ) as error:  # numbers so large or small that no account can hold them
        raise InvalidParameter(
            f"No mechanism can be found for these numbers ({type(error).__name__})."
        ) from error
