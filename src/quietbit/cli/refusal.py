"""Refusals in one voice: name, rule, value; whether the command line or the library found the mistake.

Idea     the parser's own sentences become ours (``--levels must be a whole number, got 'two'``), and where the library
         names a parameter that the command has as an option, the option is named.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["of_library", "of_usage"]

# What the library calls an option of another name.
LIBRARY = {"input_levels": "levels", "output_bits": "bits"}
KINDS = {"integer": "a whole number", "int": "a whole number", "float": "a number", "boolean": "true or false"}


def of_library(message: str, command: Callable[..., Any] | None) -> str:
    """The library's sentence with the command's options in place of parameters' names.

    The first word is a parameter if ``must`` follows it; further in, only a word with an underscore can be one.
    """
    options = _options(command)
    first = re.match(r"([a-z_]+)(?= must )", message)
    if first and LIBRARY.get(first[1], first[1]) in options:
        message = _option(first[1]) + message[first.end() :]
    return re.sub(
        r"(?<![-\w'/.])[a-z]+(?:_[a-z]+)+(?![\w'/.=(])",
        lambda word: _option(word[0]) if LIBRARY.get(word[0], word[0]) in options else word[0],
        message,
    )


def of_usage(error: Any, command: Callable[..., Any] | None = None) -> str:
    """The parser's refusal of a command's words as a sentence of ours; one of no known kind is passed on."""
    kind = type(error).__name__
    look = f"see quietbit {command.__name__.replace('_', ' ')} --help" if command is not None else "see quietbit --help"
    said = str(getattr(error, "message", "") or "")
    if kind == "NoSuchOption":
        near = list(getattr(error, "possibilities", None) or ())
        return f"There is no option {error.option_name}: {f'did you mean {near[0]}?' if near else look}"
    missing = re.match(r"No such command '(.*?)'", said)
    if missing:
        return f"There is no command {missing[1]}: {look}"
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
    """The option as it is typed, or the argument as the help names it."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return str(getattr(error, "param_hint", None) or "a value")
    long: Sequence[str] = [text for text in parameter.opts if text.startswith("--")]
    return long[0] if long else str(parameter.metavar or parameter.human_readable_name).upper().removesuffix("...")


def _options(command: Callable[..., Any] | None) -> set[str]:
    return set(inspect.signature(command).parameters) if command is not None else set()


def _option(word: str) -> str:
    return "--" + LIBRARY.get(word, word).replace("_", "-")
