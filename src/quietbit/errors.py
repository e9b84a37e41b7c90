"""Every refusal: one exception family, one sentence each, written so that NaN fails too.

Idea     a value is refused at the door with its name, the rule and the value; nothing is half done.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Self

from attrs import NOTHING

__all__ = [
    "CheckedEnum",
    "InvalidDesignFile",
    "InvalidParameter",
    "InvalidPayload",
    "MissingDependency",
    "Outlier",
    "QuietbitError",
    "check_int",
    "check_known",
    "check_real",
    "how_to_install",
    "refuse_payload",
    "require",
    "require_module",
]


class QuietbitError(Exception):
    """Anything quietbit refuses; the message is one sentence meant for a person."""


class InvalidParameter(QuietbitError, ValueError):
    """A value that is refused, with ``name``, ``rule``, ``value`` and ``remedy`` as fields.

    The fields are empty where no single value is at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        rule: str = "",
        value: Any = NOTHING,
        remedy: str = "",
    ) -> None:
        """Keep the fields, so that callers and tests need not read the message."""
        super().__init__(message)
        self.name = name
        self.rule = rule
        self.value = value
        self.remedy = remedy

    @classmethod
    def of(cls, name: str, rule: str, value: Any = NOTHING, remedy: str = "") -> Self:
        """Return a refusal that says what failed, with the value, then what to do (``remedy``).

        >>> print(InvalidParameter.of("trust", "central", "local", "set quietbit.trust"))
        trust must be central, got 'local': set quietbit.trust.
        """
        sentence = f"{name} must be {rule}"
        if value is not NOTHING:
            sentence += f", got {value!r}"
        if remedy:
            sentence += f": {remedy}"
        return cls(f"{sentence}.", name=name, rule=rule, value=value, remedy=remedy)

    def renamed(self, name: str) -> Self:
        """Return the same refusal of a value that the reader knows as ``name``."""
        return type(self).of(name, self.rule, self.value, self.remedy)


class CheckedEnum(Enum):
    """An enum that is made from a member or its value, and refuses anything else with the values there are."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        name = re.sub(r"\B(?=[A-Z])", " ", cls.__name__).lower()
        raise InvalidParameter.of(name, "one of " + ", ".join(str(one.value) for one in cls), value)


class InvalidDesignFile(QuietbitError, ValueError):
    """A file that is not a design, or is no longer the design it says it is."""


class InvalidPayload(QuietbitError, ValueError):
    """Bytes that are not a payload of the mechanism they are read for; nothing of them was used."""


class Outlier(InvalidPayload):
    """A payload that is longer than any that the mechanism makes, but for a chance of 2^-40."""


class MissingDependency(QuietbitError, ImportError):
    """An optional package is needed here and is not installed."""


def require(condition: object, name: str, value: Any, rule: str, remedy: str = "") -> None:
    """Raise ``InvalidParameter`` unless the condition holds.

    >>> require(0 < float("nan"), "radius", float("nan"), "positive and finite")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: radius must be positive and finite, got nan.
    """
    if not condition:
        raise InvalidParameter.of(name, rule, value, remedy)


def check_int(value: Any, name: str, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in ``low .. high``; booleans and fractions are refused."""
    rule = (
        f"a whole number from {low} to {high}"
        if high is not None
        else f"a whole number of at least {low}"
    )
    try:
        number = int(value)
        exact = not isinstance(value, bool | str) and number == value
    except (TypeError, ValueError, OverflowError):
        exact, number = False, 0
    if exact and number >= low and (high is None or number <= high):
        return number
    raise InvalidParameter.of(name, rule, value)


def check_real(
    value: Any,
    name: str,
    *,
    above: float = 0.0,
    at_least: float | None = None,
    at_most: float = float("inf"),
) -> float:
    """Return ``value`` as a finite float strictly above ``above``, or from ``at_least`` on, and at most ``at_most``."""
    lower = f"above {above:g}" if at_least is None else f"at least {at_least:g}"
    bound = (
        f"a finite number {lower}"
        if at_most == float("inf")
        else f"{lower} and at most {at_most:g}"
    )
    try:
        number = float(value) if not isinstance(value, bool | str) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    large = number > above if at_least is None else number >= at_least
    if large and number <= at_most and number < float("inf"):
        return number
    raise InvalidParameter.of(name, bound, value)


def check_known(word: Any, known: Iterable[str], name: str, prefix: str = "") -> None:
    """Refuse a word that is not one of ``known``: with the nearest of them, beyond their ``prefix``, or else with all.

    >>> check_known("epsilom", ["epsilon", "delta"], "key")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: key must be one that exists (did you mean 'epsilon'?), got 'epsilom'.
    """
    words = list(known)
    if word in words:
        return
    shorter = [known.removeprefix(prefix) for known in words]
    near = difflib.get_close_matches(str(word).removeprefix(prefix), shorter, 1)
    rule = (
        f"one that exists (did you mean {prefix + near[0]!r}?)"
        if near
        else "one of " + ", ".join(words)
    )
    raise InvalidParameter.of(name, rule, word)


def refuse_payload(name: str, rule: str, found: object) -> NoReturn:
    """Raise the one sentence for a payload that is not accepted."""
    raise InvalidPayload(f"{name} must be {rule}, got {found}.")


def how_to_install(extra: str = "") -> str:
    """Return the command that brings an extra, in a checkout or where a wheel is installed.

    Quietbit is in no package index: a command that made pip look for it there would install a
    stranger's package. pip does not look for what is installed already.
    """
    if (Path(__file__).parents[2] / "pyproject.toml").is_file():
        what = ". ./packages/lab" if extra == "lab" else f"'.[{extra}]'" if extra else "."
        return f"pip install {what} in a checkout of quietbit"
    if extra == "lab":
        return "install the wheel of quietbit-lab that was built with this one"
    return f"pip install 'quietbit[{extra}]'" if extra else "install the wheel of quietbit again"


def require_module(name: str, extra: str) -> ModuleType:
    """Import an optional module, or say in one sentence how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        need = f"This needs the package {name.split('.')[0]}, which is not installed"
        raise MissingDependency(f"{need}: {how_to_install(extra)}.") from error
