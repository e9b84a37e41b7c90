"""Every refusal: one exception family, one sentence each, written so that NaN fails too.

Idea     a value is refused at the door with its name, the rule and the value; nothing is half done.
"""

from __future__ import annotations

import importlib
from enum import Enum
from types import ModuleType
from typing import Any, NoReturn, TypeVar

__all__ = [
    "InvalidDesignFile",
    "InvalidParameter",
    "InvalidPayload",
    "MissingDependency",
    "QuietbitError",
    "finite_real",
    "how_to_install",
    "member",
    "refuse_payload",
    "require",
    "require_module",
    "whole_number",
]


Member = TypeVar("Member", bound=Enum)


class QuietbitError(Exception):
    """Anything quietbit refuses; the message is one sentence meant for a person."""


class InvalidParameter(QuietbitError, ValueError):
    """A value outside what the mathematics allows."""


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
    quietbit._validate.InvalidParameter: radius must be positive and finite, got nan.
    """
    if not condition:
        raise InvalidParameter(f"{name} must be {rule}, got {value!r}.")


def whole_number(value: Any, name: str, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in ``low .. high``; booleans and fractions are refused."""
    rule = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"
    try:
        number = int(value)
        exact = not isinstance(value, bool | str) and number == value
    except (TypeError, ValueError, OverflowError):
        exact, number = False, 0
    require(exact and number >= low and (high is None or number <= high), name, value, rule)
    return number


def finite_real(value: Any, name: str, *, above: float = 0.0, at_most: float = float("inf")) -> float:
    """Return ``value`` as a finite float strictly above ``above`` and at most ``at_most``."""
    bound = (
        f"a finite number above {above:g}" if at_most == float("inf") else f"above {above:g} and at most {at_most:g}"
    )
    try:
        number = float(value) if not isinstance(value, bool | str) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    require(above < number <= at_most and number < float("inf"), name, value, bound)
    return number


def member(family: type[Member], value: Any, name: str) -> Member:
    """The member of an enum, given itself or its value; anything else is refused with the values there are."""
    if isinstance(value, family):
        return value
    for known in family:
        if isinstance(value, str) and known.value == value:
            return known
    raise InvalidParameter(f"{name} must be one of {', '.join(str(one.value) for one in family)}, got {value!r}.")


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
