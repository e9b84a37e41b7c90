"""Every refusal: one exception family, one sentence each, written so that NaN fails too.

Idea     a value is refused at the door with its name, the rule and the value; nothing is half done.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from enum import Enum
from types import ModuleType
from typing import Any, NoReturn, Self, TypeVar

from attrs import NOTHING

__all__ = [
    "InvalidDesignFile",
    "InvalidParameter",
    "InvalidPayload",
    "MissingDependency",
    "QuietbitError",
    "check_int",
    "check_known",
    "check_parameters",
    "check_real",
    "how_to_install",
    "member",
    "refuse_payload",
    "require",
    "require_module",
]


Member = TypeVar("Member", bound=Enum)
FLOATS = ("float16", "bfloat16", "float32", "float64")
# What torch, Keras and flax call what a normalisation layer notes of the data. With noise on it a variance becomes
# negative, and the model NaN, in a run that otherwise looks well.
STATISTICS = {"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance", "moving_var"}
COLLECTION = "batch_stats"
PARAMETERS = "send model.named_parameters() alone, of quietbit.group_norm(model) where it has BatchNorm"


class QuietbitError(Exception):
    """Anything quietbit refuses; the message is one sentence meant for a person."""


class InvalidParameter(QuietbitError, ValueError):
    """A value outside what the mathematics allows; ``name``, ``rule`` and ``value`` where one value is at fault."""

    def __init__(self, message: str, *, name: str = "", rule: str = "", value: Any = NOTHING) -> None:
        """Keep the parts, so that a caller which knows the value by another name can say so without reading text."""
        super().__init__(message)
        self.name, self.rule, self.value = name, rule, value

    @classmethod
    def of(cls, name: str, rule: str, value: Any = NOTHING) -> Self:
        """Make the usual sentence from the parts; without a value, of one that is missing."""
        got = "" if value is NOTHING else f", got {value!r}"
        return cls(f"{name} must be {rule}{got}.", name=name, rule=rule, value=value)

    def renamed(self, name: str) -> Self:
        """Return the same refusal of a value that the reader knows as ``name``."""
        return type(self).of(name, self.rule, self.value)


class InvalidDesignFile(QuietbitError, ValueError):
    """A file that is not a design, or is no longer the design it says it is."""


class InvalidPayload(QuietbitError, ValueError):
    """Bytes that are not a payload of the mechanism they are read for; nothing of them was used."""


class MissingDependency(QuietbitError, ImportError):
    """An optional package is needed here and is not installed."""


def require(condition: object, name: str, value: Any, rule: str) -> None:
    """Raise ``InvalidParameter`` unless the condition holds.

    >>> require(0 < float("nan"), "radius", float("nan"), "positive and finite")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: radius must be positive and finite, got nan.
    """
    if not condition:
        raise InvalidParameter.of(name, rule, value)


def check_int(value: Any, name: str, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in ``low .. high``; booleans and fractions are refused."""
    rule = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"
    try:
        number = int(value)
        exact = not isinstance(value, bool | str) and number == value
    except (TypeError, ValueError, OverflowError):
        exact, number = False, 0
    require(exact and number >= low and (high is None or number <= high), name, value, rule)
    return number


def check_real(
    value: Any, name: str, *, above: float = 0.0, at_least: float | None = None, at_most: float = float("inf")
) -> float:
    """Return ``value`` as a finite float strictly above ``above``, or from ``at_least`` on, and at most ``at_most``."""
    lower = f"above {above:g}" if at_least is None else f"at least {at_least:g}"
    bound = f"a finite number {lower}" if at_most == float("inf") else f"{lower} and at most {at_most:g}"
    try:
        number = float(value) if not isinstance(value, bool | str) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    large = number > above if at_least is None else number >= at_least
    require(large and number <= at_most and number < float("inf"), name, value, bound)
    return number


def member(family: type[Member], value: Any, name: str) -> Member:
    """The member of an enum, given itself or its value; anything else is refused with the values there are."""
    if isinstance(value, family):
        return value
    for known in family:
        if isinstance(value, str) and known.value == value:
            return known
    raise InvalidParameter.of(name, "one of " + ", ".join(str(one.value) for one in family), value)


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
    rule = f"one that exists (did you mean {prefix + near[0]!r}?)" if near else "one of " + ", ".join(words)
    raise InvalidParameter.of(name, rule, word)


def check_parameters(arrays: Iterable[tuple[str, str]], remedy: str = PARAMETERS) -> None:
    """Refuse, all in one sentence, the arrays of these names and types that are no parameters and cannot be learnt.

    Running statistics are known by their names, counters and masks by their types.

    >>> check_parameters([("weight", "float32"), ("running_var", "float32"), ("steps", "int64")], "drop")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: 2 arrays are no parameters: running_var (a statistic), steps (int64); drop.
    """
    found = []
    for name, kind in arrays:
        words = re.findall(r"\w+", name)
        if COLLECTION in words or (words and words[-1] in STATISTICS):
            found.append(f"{name} (a statistic)")
        elif kind not in FLOATS:
            found.append(f"{name} ({kind})")
    if found:
        many = "1 array is no parameter" if len(found) == 1 else f"{len(found)} arrays are no parameters"
        raise InvalidParameter(f"{many}: {', '.join(found)}; {remedy}.")


def refuse_payload(name: str, rule: str, found: object) -> NoReturn:
    """Raise the one sentence for a payload that is not accepted."""
    raise InvalidPayload(f"{name} must be {rule}, got {found}.")


def how_to_install(extra: str = "") -> str:
    """What brings an extra: quietbit is in no package index, so that it is installed from its folder.

    >>> how_to_install("plot")
    "pip install '.[plot]' in a checkout of quietbit"
    """
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install {what} in a checkout of quietbit"


def require_module(name: str, extra: str) -> ModuleType:
    """Import an optional module, or say in one sentence how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise MissingDependency(
            f"This needs the package {package}, which is not installed: {how_to_install(extra)}."
        ) from error
