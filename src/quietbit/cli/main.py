"""Where the command line begins, and the one place where failures become sentences and exit codes.

Idea     0: done. 1: done, and the answer is no. 2: bad input, one sentence on stderr. 130:
         interrupted. A traceback means a bug of ours, never a mistake of the user's. Commands are
         imported inside, so that Ctrl-C ends in the same way from the first moment on, and whatever
         code made of it on its way up.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main", "with_options"]

OK, BAD_INPUT, INTERRUPTED = 0, 2, 130
# What the library calls the value of an option of another name.
LIBRARY = {
    "input_levels": "levels",
    "output_bits": "bits",
    "norm of the ball": "norm",
    "rate": "sampling_rate",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    pressed: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def lost(unraised: Any) -> None:
        """Press again where a KeyboardInterrupt came up in a callback, and Python would only have said so."""
        if unraised.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
        else:
            hook(unraised)

    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    ours = (
        threading.current_thread() is threading.main_thread()
        and before is signal.default_int_handler
    )
    try:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
            sys.unraisablehook = lost
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        if not pressed:
            raise
        code = INTERRUPTED  # what a library made of it, in the middle of an import for instance
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
            sys.unraisablehook = hook
    if pressed or code == INTERRUPTED:
        return _refuse("Interrupted: the command stopped before it was done.", INTERRUPTED)
    return code


def _run(chosen: list[str]) -> int:
    import typer

    from quietbit.cli.app import COMMANDS, app
    from quietbit.errors import QuietbitError

    # What typer raises for a wrong option or argument; where it is defined differs between its
    # versions.
    wrong_usage: type[Exception] = typer.BadParameter.__mro__[2]
    command = COMMANDS.get(tuple(chosen[:2])) or COMMANDS.get(tuple(chosen[:1]))
    try:
        result = app(chosen, prog_name="quietbit", standalone_mode=False)
        sys.stdout.flush()
    except QuietbitError as error:
        return _refuse(with_options(error, command), BAD_INPUT)
    except wrong_usage as error:
        return _refuse(error.format_message(), BAD_INPUT)  # type: ignore[attr-defined]
    except typer.Abort:
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if (
            isinstance(error, SystemExit) and not error.code
        ):  # typer exits so when it has written a completion
            return OK
        # Whoever read our output has seen enough; typer exits with 1 for that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return OK
    return result if isinstance(result, int) else OK


def with_options(error: Exception, command: Callable[..., Any] | None) -> str:
    """Return the library's sentence, with the command's option in place of a parameter's name."""
    from quietbit.errors import InvalidParameter

    if not isinstance(error, InvalidParameter) or command is None:
        return str(error)
    name = LIBRARY.get(error.name, error.name.removeprefix("mechanism.")).replace("-", "_")
    known = inspect.signature(command, eval_str=True).parameters.get(name)
    if known is None:
        return str(error)
    told: Any = getattr(known.annotation, "__metadata__", (None,))[
        0
    ]  # an argument is known by the word in the help
    argument = type(told).__name__ == "ArgumentInfo"
    return str(
        error.renamed(told.metavar or name.upper() if argument else "--" + name.replace("_", "-"))
    )


def _refuse(message: str, code: int) -> int:
    sentence = " ".join(message.split())
    print(sentence if sentence.endswith((".", "!", "?")) else sentence + ".", file=sys.stderr)
    return code
