"""A task of one's own: a function, named on the command line, that makes a problem.

Idea     ``module:function`` names a function of an installed module, or of one in the working
         folder. It is called with ``seed`` and returns a `Problem`: clients, their clipped updates,
         a start and a score. Importing a module runs it, so that a name counts only where a person
         gave it: a record or a sweep file that names one is refused unless the command line names
         the same.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.federation.simulate.problem import Problem

__all__ = ["check_named", "is_own", "own_problem"]


def is_own(name: str) -> bool:
    """Whether a task's name is ``module:function``.

    >>> is_own("my_task:make"), is_own("digits")
    (True, False)
    """
    module, colon, function = name.partition(":")
    return (
        bool(colon)
        and function.isidentifier()
        and all(part.isidentifier() for part in module.split("."))
    )


def check_named(name: str, given: str | None) -> None:
    """Refuse code that a file names and the command line does not."""
    if is_own(name) and name != given:
        remedy = f"add --task {name}: code that only a file names is not run"
        raise InvalidParameter.of("task", "named on the command line too", given, remedy)


def own_problem(name: str, seed: int) -> Problem:
    """Return the problem that a function makes; refuse anything else in one sentence."""
    module, _, function = name.partition(":")
    make: Any = getattr(_imported(name, module), function, None)
    require(callable(make), "task", name, f"a function of the module {module}")
    try:
        problem: Any = make(seed=seed)
    except QuietbitError:
        raise
    except Exception as error:
        raise QuietbitError(
            f"The task {name} failed: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
    rule = "a Problem (name, dimension, sizes, initial, updates, evaluate)"
    require(isinstance(problem, Problem), f"result of {name}", type(problem).__name__, rule)
    made: Problem = problem
    return made


def _imported(name: str, module: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(
            folder
        )  # last: nothing installed can be hidden by a file of the working folder
    try:
        return importlib.import_module(module)
    except Exception as error:
        reason = f"importing it failed with {type(error).__name__}: {str(error).rstrip('.')}"
        rule = "module:function with a module that imports"
        raise InvalidParameter.of("task", rule, name, reason) from error
