"""The command line assembled, and the one place where failures become sentences and exit codes.

Idea     0: done. 1: done, and the answer is no. 2: bad input, one sentence on stderr. 130: interrupted.
         A traceback means a bug of ours, never a mistake of the user's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.audit import audit
from quietbit.cli.calibrate import calibrate
from quietbit.cli.catalogue import catalogue
from quietbit.cli.certify import certify
from quietbit.cli.compare import compare
from quietbit.cli.design import design
from quietbit.cli.doctor import doctor
from quietbit.cli.node import NODE_COMMANDS, node
from quietbit.cli.privacy import privacy
from quietbit.cli.refusal import of_library, of_usage

__all__ = ["app", "main"]

OK, BAD_INPUT, INTERRUPTED = 0, 2, 130
# What typer raises for a wrong option or argument; where it is defined differs between its versions.
WrongUsage: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="quietbit",
    help="Federated learning updates that leave the device private and packed to about one bit per parameter.",
    epilog="Every command takes --json. Start with: quietbit demo --out demo-output",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
OWN = (compare, design, certify, catalogue, privacy, calibrate, audit, doctor)


def _added() -> list[Callable[..., Any]]:
    """Commands of other installed packages, the laboratory's among them."""
    return [entry.load() for entry in sorted(entry_points(group="quietbit.commands"), key=lambda entry: entry.name)]


COMMANDS: tuple[Callable[..., Any], ...] = (*_added(), *OWN)
for command in COMMANDS:
    app.command()(command)
app.add_typer(node)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(quietbit.__version__)
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    chosen = sys.argv[1:] if arguments is None else list(arguments)
    command = {command.__name__: command for command in COMMANDS}.get(chosen[0]) if chosen else None
    if chosen[:1] == ["node"] and len(chosen) > 1:
        command = NODE_COMMANDS.get(chosen[1])
    try:
        result = app(chosen, prog_name="quietbit", standalone_mode=False)
        sys.stdout.flush()
    except quietbit.QuietbitError as error:
        return _refuse(of_library(str(error), command), BAD_INPUT)
    except WrongUsage as error:
        return _refuse(of_usage(error, command), BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:  # typer exits so when it has written a completion
            return OK
        # Whoever read our output has seen enough; typer exits with 1 for that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return OK
    if result == INTERRUPTED:
        return _refuse("Interrupted: the command stopped before it was done.", INTERRUPTED)
    return result if isinstance(result, int) else OK


def _refuse(message: str, code: int) -> int:
    sentence = " ".join(message.split())
    print(sentence if sentence.endswith((".", "!", "?")) else sentence + ".", file=sys.stderr)
    return code
