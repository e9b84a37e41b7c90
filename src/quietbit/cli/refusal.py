"""Refusals in one voice: name, rule, value; whether the command line or the library found the mistake.

Idea     the parser's own sentences become ours (``--levels must be a whole number, got 'two'``), and a refusal of the
         library, which knows the name of what it refuses, names the option that the command has for it.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from quietbit.errors import InvalidParameter

__all__ = ["of_library", "of_usage"]

# What the library calls the value of an option of another name.
LIBRARY = {"input_levels": "levels", "output_bits": "bits", "norm of the ball": "norm"}
KINDS = {"integer": "a whole number", "int": "a whole number", "float": "a number", "boolean": "true or false"}


def of_library(error: Exception, command: Callable[..., Any] | None) -> str:
    """Return the library's sentence, with the command's option in place of a parameter's name."""
    if not isinstance(error, InvalidParameter) or command is None:
        return str(error)
    name = LIBRARY.get(error.name, error.name).replace("-", "_")
    known = inspect.signature(command, eval_str=True).parameters.get(name)
    if known is None:
        return str(error)
    told = getattr(known.annotation, "__metadata__", (None,))[0]  # an argument is known by the word in the help
    argument = type(told).__name__ == "ArgumentInfo"
    return str(error.renamed(str(getattr(told, "metavar", name)) if argument else "--" + name.replace("_", "-")))


def of_usage(error: Any, command: Callable[..., Any] | None = None, commands: Sequence[str] = ()) -> str:
    """Return the parser's refusal of words as a sentence of ours; one of no known kind is passed on."""
    kind = type(error).__name__
    look = f"see quietbit {command.__name__.replace('_', ' ')} --help" if command is not None else "see quietbit --help"
    said = str(getattr(error, "message", "") or "")
    if kind == "NoSuchOption":
        near = list(getattr(error, "possibilities", None) or ())
        return f"There is no option {error.option_name}: {f'did you mean {near[0]}?' if near else look}"
    missing = re.match(r"No such command '(.*?)'", said)
    if missing:
        inside = "node " if getattr(error.ctx, "info_name", "") == "node" else ""
        close = difflib.get_close_matches(inside + missing[1], commands, 1)
        return f"There is no command {inside}{missing[1]}: {f'did you mean {close[0]}?' if close else look}"
    if kind == "MissingParameter":
        return f"{_name(error)} must be given: {look}"
    if kind == "BadParameter":
        wrong = re.match(r"'?(.*?)'? is not a valid (\w+)", said)
        if wrong and wrong[2] in KINDS:
            return f"{_name(error)} must be {KINDS[wrong[2]]}, got {wrong[1]!r}"
        return f"{_name(error)} is refused: {said}"
    bare = re.match(r"Option '(.*?)' requires an argument", said)
    if bare:
        return f"{bare[1]} must be given a value: {look}"
    extra = re.match(r"Got unexpected extra arguments? \((.*)\)", said)
    if extra:
        return f"There is no place for {extra[1]!r}: {look}"
    return str(error.format_message())


def _name(error: Any) -> str:
    """Return the option as it is typed, or the argument as the help names it."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return str(getattr(error, "param_hint", None) or "a value")
    long: Sequence[str] = [text for text in parameter.opts if text.startswith("--")]
    return long[0] if long else str(parameter.metavar or parameter.human_readable_name).upper().removesuffix("...")
