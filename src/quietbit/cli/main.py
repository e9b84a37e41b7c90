"""Where the command line begins, and the one place where failures become sentences and exit codes.

Idea     0: done. 1: done, and the answer is no. 2: wrong input, one sentence on stderr. 130:
         interrupted. A traceback is a bug of quietbit's, never a mistake of the user's. Commands
         are imported inside functions, so that Ctrl-C has the same effect from the first moment on,
         also where a library turns the interrupt into another exception.
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

OK = 0
BAD_INPUT = 2
INTERRUPTED = 130
# Options whose values the library knows by another name.
OPTIONS = {
    "input_levels": "levels",
    "output_bits": "bits",
    "norm of the ball": "norm",
    "rate": "sampling_rate",
}
# Options of earlier versions, and what became of them.
RENAMED = {
    "--answer-seconds": "now --response-seconds",
    "--keep": "now --coordinates",
    "--radius": "gone: errors are in units of the clip, which belongs to an uplink or a plan",
    "--clip": "gone: noise is in units of the clip, which belongs to an uplink or a plan",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    interrupts: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    def report_unraisable(unraised: Any) -> None:
        """Interrupt again where Python drops a KeyboardInterrupt, as in a callback."""
        if unraised.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
        else:
            hook(unraised)

    handler = signal.getsignal(signal.SIGINT)
    hook = sys.unraisablehook
    is_main_thread = threading.current_thread() is threading.main_thread()
    handles = is_main_thread and handler is signal.default_int_handler
    try:
        if handles:
            signal.signal(signal.SIGINT, interrupt)
            sys.unraisablehook = report_unraisable
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        if not interrupts:
            raise
        code = INTERRUPTED  # a library turned the interrupt into this exception
    finally:
        if handles:
            signal.signal(signal.SIGINT, handler)
            sys.unraisablehook = hook
    if interrupts or code == INTERRUPTED:
        return _refuse("Interrupted: the command stopped before it was done.", INTERRUPTED)
    return code


def _run(words: list[str]) -> int:
    import typer

    from quietbit.cli.app import COMMANDS, app
    from quietbit.errors import QuietbitError

    # What typer raises for a wrong option or argument; its module differs between versions.
    wrong_usage: type[Exception] = typer.BadParameter.__mro__[2]
    command = COMMANDS.get(tuple(words[:2])) or COMMANDS.get(tuple(words[:1]))
    try:
        result = app(words, prog_name="quietbit", standalone_mode=False)
        sys.stdout.flush()
    except QuietbitError as error:
        return _refuse(with_options(error, command), BAD_INPUT)
    except wrong_usage as error:
        return _refuse_usage(error, words)
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as error:
        if error.code:  # typer exits with 1 where the reader of our output has closed it
            _close_output()
        return OK  # with 0, typer has written a completion
    except BrokenPipeError:
        _close_output()
        return OK
    return result if isinstance(result, int) else OK


def _close_output() -> None:
    """Send the rest of the output nowhere: its reader has seen enough, which is not an error."""
    number = sys.__stdout__.fileno() if sys.__stdout__ else 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _refuse_usage(error: Any, words: list[str]) -> int:
    """Print what is wrong with the words, and where the help is; nothing if it was printed."""
    message = " ".join(error.format_message().split()).rstrip(".")
    option = getattr(error, "option_name", None)
    if option in RENAMED:
        return _refuse(f"{option} is {RENAMED[option]}", BAD_INPUT)
    missing = _missing_options(error, words)
    if len(missing) > 1:
        message = f"Missing options {', '.join(missing[:-1])} and {missing[-1]}"
    if not message:
        return BAD_INPUT
    if not message.endswith("?"):
        path = getattr(getattr(error, "ctx", None), "command_path", "quietbit")
        message = f"{message}; see {path} --help"
    return _refuse(message, BAD_INPUT)


def _missing_options(error: Any, words: list[str]) -> list[str]:
    """Return all required options that were not given, of which typer names the first alone."""
    if type(error).__name__ != "MissingParameter":
        return []
    given = {word.partition("=")[0] for word in words}
    missing = []
    for parameter in error.ctx.command.params:
        is_option = parameter.param_type_name == "option"
        if is_option and parameter.required and not given & {*parameter.opts}:
            missing.append(parameter.opts[0])
    return missing


def with_options(error: Exception, command: Callable[..., Any] | None) -> str:
    """Return an error's sentence, with the command's options in place of parameters' names."""
    from quietbit.errors import InvalidParameter

    if not isinstance(error, InvalidParameter) or not error.rule or command is None:
        return str(error)
    parameters = inspect.signature(command, eval_str=True).parameters
    names = error.name.split(" or ")
    options = [_option(name, parameters) for name in names]
    if None in options:
        return str(error)
    return str(error.renamed(" or ".join(filter(None, options))))


def _option(name: str, parameters: Any) -> str | None:
    """Return how a command's help writes the parameter that the library calls ``name``."""
    key = name.removeprefix("mechanism.").replace("-", "_")
    if key not in parameters:
        key = OPTIONS.get(key, key)
    if key not in parameters:
        return None
    info: Any = getattr(parameters[key].annotation, "__metadata__", (None,))[0]
    if type(info).__name__ == "ArgumentInfo":
        return str(info.metavar or key.upper())
    return "--" + key.replace("_", "-")


def _refuse(message: str, code: int) -> int:
    sentence = " ".join(message.split())
    if not sentence.endswith((".", "!", "?")):
        sentence += "."
    print(sentence, file=sys.stderr)
    return code
