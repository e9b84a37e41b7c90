"""What every part may know of a plan: its target, mechanism and clip, and the sections beside them.

Idea     a plan is `Terms` and its sections (`federation.plan`). A section is a table of choices,
         whose fields check themselves (`federation.fields`); one that is absent is off. Sections
         and parts know terms, and no plan, so that each of them can be read by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, final

import attrs
import numpy as np
from attrs import converters, field, frozen
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_known, require
from quietbit.federation.fields import Flag, Real, Word, check_fields, choice
from quietbit.federation.messages import Node
from quietbit.federation.part import Part
from quietbit.federation.record import RoundReport
from quietbit.mechanism.ball import Norm, check_clip
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.family import OWN, SHARED
from quietbit.mechanism.registry import AUTO, families, family
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Target, Trust, Unit, check_delta, check_releases

__all__ = ["MechanismChoice", "RunForecast", "Say", "Section", "Terms", "given", "left_out"]

Say: TypeAlias = Callable[[int, str], None]  # takes a level of logging and a sentence
Kind = TypeVar("Kind", bound="Section")
PREFIX = "quietbit."  # prefix of the keys in an engine's config
PUBLIC = "none"  # in place of a mechanism: clipped updates without noise or privacy
CENTRAL = "gaussian"  # its noise is added once, to the sum, by a trusted server
STRENGTHS = ("design_epsilon", "noise_multiplier")
# Choices at the paper's values: harmless where a mechanism does not use them.
PAPER = {
    "bits": None,
    "levels": None,
    "beta": 1.0,
    "clamp": False,
    "decoder": "alphabet",
    "rotate": False,
}
Counts: TypeAlias = NDArray[np.int64]
Priced: TypeAlias = Callable[[Mechanism], Guarantee]
Value: TypeAlias = bool | float | int | str
Table: TypeAlias = Any  # what a section is read from: one, a mapping, or a bare value


@final
@frozen
class RunForecast:
    """What a run will be like: its mechanism, nodes asked per round, rounds, and the mean's noise.

    ``clip`` is that of the first round, and ``noise`` is the length of the noise in the mean of a
    round, in clips.
    """

    mechanism: Mechanism
    asked: int
    rounds: int
    noise: float
    clip: float


@frozen
class Section:
    """A table of choices; ``title`` is its key in a plan, ``main`` the field of a bare value.

    ``needs`` is the keyword of an adapter that is for this section alone. ``columns`` are its
    numbers in the report of a round that an engine's own result shows, too. ``unit`` is whose data
    it protects. ``shares_rows``: all clients of a round keep the same rows.
    """

    title: ClassVar[str] = ""
    main: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[Unit] = Unit.CLIENT
    shares_rows: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        """Check every field by its rule, then what the fields must be together."""
        check_fields(self, f"{self.title}.")
        self.check()

    def check(self) -> None:
        """Refuse fields that do not fit together."""

    def check_plan(self, terms: Terms) -> None:
        """Refuse a plan that the section does not fit into."""

    def check_engine(self, terms: Terms) -> None:
        """Refuse a plan that says less than the engine of a run must know."""

    def part(self, terms: Terms, say: Say, resource: Any = None) -> Part | None:
        """Return the section's part in a run on a server; None where it has none.

        ``say`` logs a sentence; ``resource`` is what the adapter was given for it (`needs`).
        """
        return None

    def spends(self, terms: Terms) -> float | None:
        """Return the epsilon that is set aside from that of updates; None without any."""
        return None

    @property
    def honest_clients(self) -> int | None:
        """How many honest clients every sum counts on; None without sums."""
        return None

    def client(self, terms: Terms, asked: str) -> Part | None:
        """Return the section's part in one turn of a client; None where it has none.

        ``asked`` is the section of the round: empty where an update is asked for.
        """
        return None

    def forecast(self, run: RunForecast) -> str | None:
        """Return a warning about a run that is about to begin; None where all is well."""
        return None

    def note(self, entry: RoundReport) -> str:
        """Return what the report notes about a round."""
        return ""

    def assumption(self) -> str:
        """Return a sentence about what the guarantee counts on besides the mechanism."""
        return ""

    def table(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain values."""
        values = {}
        for known in attrs.fields(type(self)):
            value = getattr(self, known.name)
            if value != known.default:
                values[known.name] = getattr(value, "value", value)
        return values

    @classmethod
    def read(cls: type[Kind], value: Any) -> Kind:
        """Return the section that a table, a bare value or ``True`` describes."""
        if isinstance(value, cls):
            return value
        if value is True and not cls.main:
            value = {}
        if isinstance(value, Mapping):
            for known in attrs.fields(cls):
                if known.default is attrs.NOTHING and known.name not in value:
                    raise InvalidParameter.of(f"{cls.title}.{known.name}", "given")
            return cls(**value)
        if cls.main and value is not True:
            return cls(**{cls.main: value})
        raise InvalidParameter.of(cls.title, "a table of its keys", value)

    @classmethod
    def optional(cls: type[Kind], value: Any) -> Kind | None:
        """Return the section likewise; None, False and a main field of False leave it out."""
        switched_off = isinstance(value, Mapping) and value.get(cls.main) is False
        if value is None or value is False or switched_off:
            return None
        return cls.read(value)


@final
@frozen
class MechanismChoice(Section):
    """``[mechanism]``, or its bare name: a family, ``auto`` for the best one, or ``none``.

    The strength is ``design_epsilon`` or ``noise_multiplier``, depending on the family; without one
    it is calibrated. The other choices are those of `quietbit.calibrate`; None leaves a choice to
    the family.
    """

    title: ClassVar[str] = "mechanism"
    main: ClassVar[str] = "name"

    name: str
    norm: Norm = field(default=Norm.L2, converter=Norm)
    design_epsilon: float | None = choice(Real())
    noise_multiplier: float | None = choice(Real())
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = choice(Flag())
    decoder: str | None = None
    rotate: bool | None = choice(Flag())
    coordinates: int | str | None = None
    rows: str | None = choice(Word(OWN, SHARED))

    def check(self) -> None:
        """Refuse an unknown family, and choices that the family does not use."""
        check_known(self.name, [*families(), AUTO, PUBLIC], "mechanism")
        used: tuple[str, ...] = ()
        strength = ""
        if self.known:
            used = family(self.name).uses
            strength = family(self.name).strength
        for name, paper in PAPER.items():
            value = getattr(self, name)
            harmless = name in used or value in (None, paper)
            rule = f"left out for {self.name}, which makes no use of it"
            require(harmless, f"mechanism.{name}", value, rule)
        for name in STRENGTHS:
            value = getattr(self, name)
            rule = f"left out for {self.name}"
            if strength:
                rule = f"{rule}, whose strength is its {strength.replace('_', ' ')}"
            require(name == strength or value is None, f"mechanism.{name}", value, rule)
        rule = f"left out for {PUBLIC}"
        require(
            self.private or self.coordinates is None,
            "mechanism.coordinates",
            self.coordinates,
            rule,
        )

    def check_plan(self, terms: Terms) -> None:
        """Refuse rows where all coordinates are kept, and those of each client for sums."""
        few = self.keeps_few and not terms.central
        rule = "left out unless few coordinates are kept"
        remedy = "choose vmvu, or set mechanism.coordinates"
        require(self.rows is None or few, "mechanism.rows", self.rows, rule, remedy)
        together = any(section.shares_rows for section in terms.sections)
        rule = "shared, or left out, for sums and replayed rounds"
        require(self.rows != OWN or not together, "mechanism.rows", self.rows, rule)

    @property
    def known(self) -> bool:
        """Whether it names a family."""
        return self.name not in (AUTO, PUBLIC)

    @property
    def private(self) -> bool:
        """Whether there is a mechanism."""
        return self.name != PUBLIC

    @property
    def calibrated(self) -> bool:
        """Whether the strength is derived from the budget."""
        return self.private and self.design_epsilon is None and self.noise_multiplier is None

    @property
    def keeps_few(self) -> bool:
        """Whether few coordinates are kept, by the family or by a wrapper around it."""
        return self.known and (self.coordinates is not None or self.knows_rows)

    @property
    def knows_rows(self) -> bool:
        """Whether the family itself, without a wrapper, keeps few coordinates."""
        return self.known and "rows" in family(self.name).uses

    def used(self) -> dict[str, Any]:
        """Return the choices that the family uses."""
        if not self.known:
            return {}
        return {name: getattr(self, name) for name in family(self.name).uses if name in PAPER}


def _clip(value: float | str) -> float:
    if value != AUTO:
        check_clip(value)
    return cast(float, value)  # as it is given, by which stored runs are named


def _names(value: str | list[str] | tuple[str, ...]) -> str:
    names: Any = value
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        names = ", ".join(value)
    require(isinstance(names, str), "local_arrays", value, "names separated by commas")
    return str(names)


def _mechanism(value: Table) -> MechanismChoice:
    return MechanismChoice.read(value)


@frozen
class Terms:
    """The choices of a run that belong to no section; `federation.plan.Plan` explains them."""

    mechanism: MechanismChoice = field(converter=_mechanism)
    clip: float = field(converter=_clip)
    adjacency: Adjacency = field(converter=Adjacency)
    epsilon: float | None = choice(Real())
    delta: float = field(default=1e-5, converter=check_delta)
    trust: Trust = field(default=Trust.LOCAL, converter=Trust)
    releases: int | None = field(default=None, converter=converters.optional(check_releases))
    local_arrays: str = field(default="", converter=_names)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections that are present."""
        return ()

    def find(self, kind: type[Kind]) -> Kind | None:
        """Return the section of a kind; None where it is absent."""
        for section in self.sections:
            if isinstance(section, kind):
                return section
        return None

    @cached_property
    def update_target(self) -> Target:
        """The budget of all updates of a client: the run's, less what sections set aside."""
        target = self.target
        for section in self.sections:
            spends = section.spends(self)
            if spends is not None:
                target = target.without(spends)
        return target

    @property
    def target(self) -> Target:
        """The target of the run; unlimited without a budget."""
        epsilon = math.inf
        if self.epsilon is not None:
            epsilon = self.epsilon
        return Target(
            epsilon,
            self.delta,
            self.adjacency,
            unit=self.unit,
            trust=self.trust,
            releases=self.releases or 1,
        )

    @cached_property
    def unit(self) -> Unit:
        """Whose data is protected: a sample's where a section says so, else a client's."""
        if any(section.unit is Unit.SAMPLE for section in self.sections):
            return Unit.SAMPLE
        return Unit.CLIENT

    @property
    def private(self) -> bool:
        """Whether there is a mechanism."""
        return self.mechanism.private

    @property
    def public(self) -> bool:
        """Whether there is none."""
        return not self.mechanism.private

    @property
    def central(self) -> bool:
        """Whether clients trust the server with their updates."""
        return self.trust is Trust.CENTRAL

    @property
    def summed(self) -> bool:
        """Whether the server sees masked sums alone."""
        return self.trust is Trust.SECURE_AGGREGATION

    @property
    def honest(self) -> int | None:
        """The honest clients that every sum counts on; None without sums."""
        for section in self.sections:
            if section.honest_clients is not None:
                return section.honest_clients
        return None

    @property
    def shared_rows(self) -> bool:
        """Whether all clients of a round keep the same rows."""
        if self.mechanism.rows == SHARED:
            return True
        few = self.mechanism.coordinates is not None or self.mechanism.knows_rows
        return few and any(section.shares_rows for section in self.sections)

    @property
    def summed_clients(self) -> int | None:
        """The fewest clients of a sum; None without sums."""
        return None

    def scouts_among(self, nodes: list[Node], number: int) -> list[Node] | None:
        """Return the scouts of a round; None where a public draw decides for every node."""
        return None

    def account_of(self, sizes: Counts, releases: Counts) -> Priced | None:
        """Return the account that a mechanism is calibrated on; None for the mechanism's own.

        Clients with so many samples each make these ``releases``.
        """
        return None

    def to_run_config(self) -> dict[str, Value]:
        """Return the flat config from which an engine reads this plan, without defaults."""
        config: dict[str, Value] = {}
        for known in attrs.fields(type(self)):
            value = getattr(self, known.name)
            if value is None:
                continue
            key = PREFIX + known.name.replace("_", "-")
            if not isinstance(value, Section):
                config[key] = getattr(value, "value", value)
                continue
            inner = value.table()
            if set(inner) == {value.main}:
                config[key] = inner[value.main]
            elif not inner:
                config[key] = True
            else:
                for name, part in inner.items():
                    config[f"{key}.{name.replace('_', '-')}"] = part
        return config


def left_out(plan: Any, names: Iterable[str], rule: str) -> None:
    """Refuse fields, of the plan or ``section.field``, that differ from their defaults."""
    for name in names:
        owner, field_name = _owner(plan, name)
        if owner is None:
            continue
        value = getattr(owner, field_name)
        default = getattr(attrs.fields(type(owner)), field_name).default
        if value != default:
            raise InvalidParameter.of(name, f"left out {rule}", getattr(value, "value", value))


def given(plan: Any, name: str, rule: str) -> None:
    """Refuse a plan without a field, of the plan or ``section.field``."""
    owner, field_name = _owner(plan, name)
    if getattr(owner, field_name) is None:
        raise InvalidParameter.of(name, f"given{rule}")


def _owner(plan: Any, name: str) -> tuple[Any, str]:
    """Return the plan or the section that has a field, and the field's own name."""
    outer, _, inner = name.partition(".")
    if not inner:
        return plan, outer
    return getattr(plan, outer), inner
