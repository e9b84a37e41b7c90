"""Every refusal: one exception family, one sentence each, written so that NaN fails too.

Idea     a value is checked where it enters, before anything is done with it. A refusal says which
         value, the rule it breaks, and what to do. Words of strangers are shown in printable
         letters alone: no text moves a cursor, hides a word or begins a line of its own.
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
import shlex
from collections.abc import Iterable, Mapping
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
    "check_current",
    "check_int",
    "check_known",
    "check_real",
    "how_to_install",
    "lines_of",
    "one_line",
    "refuse_payload",
    "require",
    "require_module",
]

MOST_LETTERS = 400  # of a stranger's words
MOST_LINES = 60  # of a stranger's traceback
MOST_INDENT = 40
READ = 4  # times as many letters are looked at: the rest may be spaces
MARGIN = "| "  # before every line of a stranger's traceback: it is none of the log's own


class QuietbitError(Exception):
    """Base class of all errors of quietbit; the message is one sentence for a person."""


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
            shown = value.value if isinstance(value, Enum) else value
            sentence += f", got {shown!r}"
        if remedy:
            sentence += f": {remedy}"
        return cls(f"{sentence}.", name=name, rule=rule, value=value, remedy=remedy)

    def renamed(self, name: str) -> Self:
        """Return the same refusal under the name by which the reader knows the value."""
        return type(self).of(name, self.rule, self.value, self.remedy)


class CheckedEnum(Enum):
    """An enum made from a member or its value; other values are refused with the list of all."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        name = re.sub(r"\B(?=[A-Z])", " ", cls.__name__).lower()
        values = ", ".join(str(member.value) for member in cls)
        raise InvalidParameter.of(name, f"one of {values}", value)


class InvalidDesignFile(QuietbitError, ValueError):
    """A file that is not a design, or whose content does not match its identity."""


class InvalidPayload(QuietbitError, ValueError):
    """Bytes that are not a payload of the expected mechanism; none of them was used."""


class Outlier(InvalidPayload):
    """A payload longer than all but a share of 2^-40 of those that the mechanism makes."""


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
    try:
        number = int(value)
        exact = not isinstance(value, bool | str) and number == value
    except (TypeError, ValueError, OverflowError):
        number = 0
        exact = False
    if exact and number >= low and (high is None or number <= high):
        return number
    rule = f"a whole number of at least {low}"
    if high is not None:
        rule = f"a whole number from {low} to {high}"
    raise InvalidParameter.of(name, rule, value, _unquoted(value))


def check_real(
    value: Any,
    name: str,
    *,
    above: float = 0.0,
    at_least: float | None = None,
    at_most: float = math.inf,
) -> float:
    """Return ``value`` as a finite float within the bounds; booleans, words and NaN are refused.

    Args:
        value: what was given.
        name: what the caller knows it as.
        above: the result is strictly larger; ignored where ``at_least`` is given.
        at_least: the smallest value allowed.
        at_most: the largest value allowed.
    """
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if at_least is None:
        large_enough = number > above
        rule = f"above {above:g}"
    else:
        large_enough = number >= at_least
        rule = f"of at least {at_least:g}"
    if large_enough and number <= at_most and number < math.inf:
        return number
    if at_most < math.inf:
        bounds = rule.removeprefix("of ")
        raise InvalidParameter.of(
            name, f"{bounds} and at most {at_most:g}", value, _unquoted(value)
        )
    raise InvalidParameter.of(name, f"a finite number {rule}", value, _unquoted(value))


def _unquoted(value: Any) -> str:
    """Return what to do about a number that is given as text."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return ""
    return f"write {value} without quotes" if isinstance(value, str) else ""


def check_current(name: str, earlier: Mapping[str, str], shown: str = "") -> None:
    """Refuse a name of an earlier version; ``earlier`` says what became of each.

    ``shown`` is how the reader writes the name.

    >>> check_current("count", {"count": "now dataset-size"})
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: count is now dataset-size.
    """
    if name in earlier:
        shown = shown or name
        rule = "a name of this version"
        remedy = earlier[name]
        raise InvalidParameter(f"{shown} is {remedy}.", name=shown, rule=rule, remedy=remedy)


def check_known(word: Any, known: Iterable[str], name: str, prefix: str = "") -> None:
    """Refuse a word that is not one of ``known``, with the closest of them, or else with all.

    ``prefix`` is what all known words begin with; it does not count as a likeness.

    >>> check_known("clp", ["clip", "delta"], "key")
    Traceback (most recent call last):
    quietbit.errors.InvalidParameter: key must be a known one (did you mean 'clip'?), got 'clp'.
    """
    words = list(known)
    if word in words:
        return
    endings = [candidate.removeprefix(prefix) for candidate in words]
    closest = difflib.get_close_matches(str(word).removeprefix(prefix), endings, 1)
    rule = "one of " + ", ".join(words)
    if closest:
        rule = f"a known one (did you mean {prefix + closest[0]!r}?)"
    raise InvalidParameter.of(name, rule, word)


def refuse_payload(name: str, rule: str, value: object) -> NoReturn:
    """Raise ``InvalidPayload`` with the name, the rule and the value."""
    raise InvalidPayload(f"{name} must be {rule}, got {value}.")


def how_to_install(extra: str = "") -> str:
    """Return the command that installs an extra, in a checkout or beside an installed wheel.

    quietbit is in no package index: a command that made pip look for it there would install a
    stranger's package. pip does not look for what is installed already.
    """
    if extra.startswith(
        "lab"
    ):  # quietbit itself is installed, so pip looks for nothing of that name
        folder = shlex.quote(extra.replace("lab", "./packages/lab", 1))
        return f"pip install {folder} in a checkout of quietbit"
    if (Path(__file__).parents[2] / "pyproject.toml").is_file():
        if extra:
            package = f"'.[{extra}]'"
        else:
            package = "."
        return f"pip install {package} in a checkout of quietbit"
    if extra:
        return f"pip install 'quietbit[{extra}]'"
    return "install the wheel of quietbit again"


def require_module(name: str, extra: str) -> ModuleType:
    """Import an optional module; where it is missing, raise with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise MissingDependency(
            f"This needs the package {package}, which is not installed: {how_to_install(extra)}."
        ) from error


def one_line(text: object, most: int = MOST_LETTERS) -> str:
    r"""Return a stranger's words on one line of at most ``most`` letters, all of them printable.

    >>> one_line("a node\n\x1b[2J\u202egone")
    'a node \\u001b[2J\\u202egone'
    """
    words = " ".join(str(text)[: READ * most + 1].split())
    shown = ""
    for letter in words[: most + 1]:
        shown += letter if letter.isprintable() else f"\\u{ord(letter):04x}"
    if len(shown) <= most:
        return shown
    return f"{shown[:most]}..."


def lines_of(text: str) -> str:
    """Return the last lines of a stranger's traceback in printable letters, with their indents."""
    lines = []
    for line in text.splitlines()[-MOST_LINES:]:
        indent = min(len(line) - len(line.lstrip(" ")), MOST_INDENT)
        lines.append(f"{MARGIN}{' ' * indent}{one_line(line.strip())}")
    return "\n".join(lines)
