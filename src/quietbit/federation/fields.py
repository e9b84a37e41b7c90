"""Fields of a plan that check themselves: each carries its rule.

Idea     a value is checked when its table is made, and refused by the name that it has there:
         ``secure_aggregation.threshold``. Tests make their tables of bad input from the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import attrs
from attrs import field, frozen

from quietbit.errors import check_int, check_real, require

__all__ = ["Flag", "Names", "Real", "Rule", "Whole", "Word", "check_fields", "choice", "needed"]

Rule: TypeAlias = Callable[[Any, str], Any]
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
