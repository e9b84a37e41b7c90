"""Values of a job, where they stand, and those that exist only when the job runs.

Idea     a value in a configuration is known. One that Python computes is an `Unknown`, named with
         its file and line, and the reader of the verdict may give it: `--set NAME=VALUE`. What is
         known cannot be set, so that no verdict is about another job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

from attrs import field, frozen

from quietbit.errors import InvalidParameter, QuietbitError, check_real, require

__all__ = ["PACKAGES", "REST", "Given", "MissingValue", "Place", "Unknown", "Use", "Value"]

# What laws are about, and torch, whose loaders one of them reads.
PACKAGES = {"dp_accounting", "flip", "flwr", "nvflare", "opacus", "quietbit", "torch"}

REQUIRED: Final = object()
FACTS = {"delta", "dimension", "samples"}
REST = "**"  # stands for the arguments that a call takes from a mapping
Value: TypeAlias = Any  # a plain value, or `Unknown`


@final
@frozen
class Place:
    """A line of a file of the job."""

    file: str
    line: int = 1
    column: int = 0  # which nobody is shown

    def __str__(self) -> str:
        """Return file and line as compilers write them."""
        return f"{self.file}:{self.line}"


@final
@frozen
class Unknown:
    """A value that is computed when the job runs."""

    name: str
    place: Place


class MissingValue(QuietbitError):
    """Values without which nothing can be proved, each with its place."""

    def __init__(self, values: tuple[Unknown, ...]) -> None:
        """Say which, where, and how to give them."""
        self.values = values
        named = [f"{value.name} ({value.place})" for value in values]
        super().__init__(f"Computed when the job runs, and not given: {', '.join(named)}.")


@final
class Given:
    """Values from the command line; each must be one that the job leaves open."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)
        self._taken: set[str] = set()

    @classmethod
    def of(cls, pairs: list[str], **named: Value) -> Given:
        """Read ``NAME=VALUE`` pairs, beside options with names of their own."""
        values = {name: value for name, value in named.items() if value is not None}
        for pair in pairs:
            name, sign, text = pair.partition("=")
            require(name and sign, "set", pair, "NAME=VALUE")
            require(name not in values, "set", pair, "given once")
            try:
                values[name] = json.loads(text)
            except (ValueError, RecursionError):
                values[name] = text
        return cls(values)

    def find(self, name: str) -> Value:
        """Return what was given, or None."""
        self._taken.add(name)
        return self._values.get(name)

    def check_taken(self) -> None:
        """Refuse a value that nothing in the job asked for, but for facts about the clients."""
        for name in set(self._values) - self._taken - FACTS:
            rule = "a value that the job computes when it runs"
            raise InvalidParameter.of(name, rule, self._values[name], "leave it out")


@final
@frozen
class Use:
    """A class or function that the job uses: its last name, arguments, and place."""

    name: str
    arguments: Mapping[str, Value]
    place: Place
    given: Given = field(repr=False, eq=False)
    needs: tuple[str, ...] = ()  # what must be true for it to be made
    repeated: bool = False  # by a loop
    chain: str = ""  # of a site's filters, for the task that this one stands in
    applied: bool = True  # by its engine, to what leaves
    node: object = field(default=None, repr=False, eq=False)  # its syntax, in Python

    def value(self, name: str, default: Value = REQUIRED) -> Value:
        """Return an argument; raise `MissingValue` where it is computed when the job runs."""
        found = self._found(name, default)
        if isinstance(found, Unknown):
            raise MissingValue((found,))
        return found

    def number(self, name: str, default: Value = REQUIRED) -> float:
        """Return an argument that must be a finite number of at least 0."""
        return check_real(self.value(name, default), f"{name} ({self.place})", at_least=0.0)

    def count(self, name: str) -> int:
        """Return an argument that must be a number of at least 1, rounded up."""
        number = self.number(name)
        require(number > 0, f"{name} ({self.place})", number, "above 0")
        return math.ceil(number)

    def numbers(self, *names: str) -> list[float]:
        """Return several arguments; raise once for all that are missing."""
        found = [self._found(name) for name in names]
        missing = tuple(value for value in found if isinstance(value, Unknown))
        if missing:
            raise MissingValue(missing)
        return [self.number(name) for name in names]

    def _found(self, name: str, default: Value = REQUIRED) -> Value:
        """Return an argument, from the command line where the job does not say."""
        found = self.arguments.get(name, self.arguments.get(REST, default))
        if found is REQUIRED:
            found = Unknown(name, self.place)
        if isinstance(found, Unknown):
            given = self.given.find(name)
            return Unknown(name, found.place) if given is None else given
        return found
