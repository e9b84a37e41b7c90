"""A section of a plan: one table of choices, whose fields check themselves.

Idea     a section that is absent is off. Each field carries its rule (`Whole`, `Real`, `Word`), by
         which a value is checked when the section is made, and refused by the name it has in a
         table: ``masks.threshold``. Tests make their tables of bad input from the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, final

import attrs
from attrs import field, frozen

from quietbit.errors import InvalidParameter, check_int, check_real, require

if TYPE_CHECKING:
    from quietbit.mechanism.base import Mechanism
    from quietbit.run.part import Part
    from quietbit.run.plan import Plan
    from quietbit.run.report import RoundReport

__all__ = [
    "Flag",
    "Names",
    "Outlook",
    "Real",
    "Say",
    "Section",
    "Whole",
    "Word",
    "choice",
    "needed",
]

Rule: TypeAlias = Callable[[Any, str], Any]
Say: TypeAlias = Callable[[int, str], None]  # takes a level of logging and a sentence
Kind = TypeVar("Kind", bound="Section")
RULE = "rule"  # the key of a field's rule in its metadata


@final
@frozen
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int | None = None

    def __call__(self, value: Any, name: str) -> int:
        """Return the number; refuse anything else."""
        return check_int(value, name, self.low, self.high)


@final
@frozen
class Real:
    """A finite number above ``above`` (or from ``at_least`` on), and at most ``at_most``."""

    above: float = 0.0
    at_least: float | None = None
    at_most: float = math.inf

    def __call__(self, value: Any, name: str) -> float:
        """Return the number; refuse anything else."""
        return check_real(
            value, name, above=self.above, at_least=self.at_least, at_most=self.at_most
        )


@final
@frozen(init=False)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        """List the words that are known."""
        self.__attrs_init__(words)

    def __call__(self, value: Any, name: str) -> str:
        """Return the word; refuse anything else."""
        require(value in self.words, name, value, "one of " + ", ".join(self.words))
        return str(value)


@final
@frozen
class Names:
    """Up to ``most`` different names: a list, or text with commas between them."""

    most: int

    def __call__(self, value: Any, name: str) -> str:
        """Return the names with a comma and a blank between them; refuse anything else."""
        parts = value.split(",") if isinstance(value, str) else value
        are_words = isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts)
        require(are_words, name, value, "names separated by commas")
        names = [part.strip() for part in parts]
        require(all(names) and len(set(names)) == len(names), name, value, "different names")
        require(0 < len(names) <= self.most, name, value, f"1 to {self.most} names")
        return ", ".join(names)


@final
@frozen
class Flag:
    """True or false."""

    def __call__(self, value: Any, name: str) -> bool:
        """Return the truth value; refuse anything else."""
        require(isinstance(value, bool), name, value, "true or false")
        return bool(value)


def choice(rule: Rule, default: Any = None) -> Any:
    """Return a field that is checked by ``rule``; None stays None, where it is the default."""
    return field(default=default, metadata={RULE: rule})


def needed(rule: Rule) -> Any:
    """Return a field that must be given, and is checked by ``rule``."""
    return field(metadata={RULE: rule})


def check_fields(owner: Any, prefix: str = "") -> None:
    """Check every field that has a rule, and keep what the rule returns."""
    for known in attrs.fields(type(owner)):
        rule = known.metadata.get(RULE)
        value = getattr(owner, known.name)
        left_out = value is None and known.default is None
        if rule is not None and not left_out:
            object.__setattr__(owner, known.name, rule(value, prefix + known.name))


@final
@frozen
class Outlook:
    """What a run will be like: its mechanism, nodes asked per round, rounds, and the mean's noise.

    ``noise`` is the length of the noise in the mean of a round, in clips.
    """

    mechanism: Mechanism
    asked: int
    rounds: int
    noise: float


@frozen
class Section:
    """A table of choices; ``title`` is its key in a plan, ``main`` the field of a bare value.

    ``needs`` is the keyword of an adapter that is for this section alone. ``uncounted`` names what
    the account of releases hidden in a crowd does not have of it. ``columns`` are its numbers in
    the report of a round that an engine's own result shows, too. ``of_engine`` are fields that a
    simulation does not read, ``*`` for all.
    """

    title: ClassVar[str] = ""
    main: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    uncounted: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    of_engine: ClassVar[tuple[str, ...]] = ()

    def __attrs_post_init__(self) -> None:
        """Check every field by its rule, then what the fields must be together."""
        check_fields(self, f"{self.title}.")
        self.check()

    def check(self) -> None:
        """Refuse fields that do not fit together."""

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan that the section does not fit into."""

    def engine_keys(self) -> list[str]:
        """Return the keys of a plan that an engine reads, and a simulation does not."""
        if "*" in self.of_engine:
            return [self.title]
        return [f"{self.title}.{name}" for name in self.of_engine]

    def part(self, plan: Plan, say: Say, resource: Any = None) -> Part | None:
        """Return the section's part in a run on a server; None where it has none.

        ``say`` logs a sentence; ``resource`` is what the adapter was given for it (`needs`).
        """
        return None

    def outlook(self, outlook: Outlook) -> str | None:
        """Return a warning about a run that is about to begin; None where all is well."""
        return None

    def note(self, entry: RoundReport) -> str:
        """Return what the report notes about a round."""
        return ""

    def assumes(self) -> str:
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
        if isinstance(value, Mapping):
            for known in attrs.fields(cls):
                if known.default is attrs.NOTHING and known.name not in value:
                    raise InvalidParameter.of(f"{cls.title}.{known.name}", "given")
            return cls(**value)
        if value is True and not cls.main:
            return cls()
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
