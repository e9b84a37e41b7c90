"""The command line: all commands, grouped by purpose."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.calibrate import calibrate
from quietbit.cli.check import check
from quietbit.cli.compare import compare
from quietbit.cli.doctor import doctor
from quietbit.cli.node import node
from quietbit.cli.options import help_text
from quietbit.errors import MissingDependency, how_to_install

__all__ = ["COMMANDS", "GROUPS", "app"]

# Purposes, with their commands in the order of the help.
GROUPS = {
    "Decide": ("compare", "calibrate", "privacy", "check"),
    "Run": ("demo", "train", "sweep", "report", "data", "doctor"),
    "Study": ("design", "certify", "catalogue", "audit", "figure"),
    "Protect a device": ("node",),  # typer lists command groups last
}
OWN = (compare, calibrate, check, doctor)
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
EPILOG = "Commands that print tables take --json. Start with: quietbit "

app = typer.Typer(
    name="quietbit",
    help="Federated learning in which every update leaves the device private, and packed to about "
    "one bit per parameter.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _add_commands() -> None:
    """Add our commands and those of other installed packages, in the order of the groups."""
    commands: dict[str, Callable[..., Any]] = {command.__name__: command for command in OWN}
    commands |= {entry.name: entry.load() for entry in entry_points(group="quietbit.commands")}
    panels = {name: group for group, names in GROUPS.items() for name in names}
    known = [name for name in panels if name in commands]
    others = sorted(set(commands) - set(known))
    for name in known + others:
        command = commands[name]
        panel = panels.get(name, "Added by other packages")
        app.command(name, help=help_text(command), rich_help_panel=panel)(command)
    for name in set(panels) - set(commands) - {node.info.name}:
        app.command(name, hidden=True, add_help_option=False, context_settings=ANYTHING)(_absent)
    app.info.epilog = EPILOG + ("demo --out demo-output" if "demo" in commands else "doctor")
    for registered in node.registered_commands:
        registered.help = help_text(registered.callback)
    app.add_typer(node, rich_help_panel=panels["node"])


def _absent(context: typer.Context) -> None:
    """Say how to get a command that comes with the laboratory."""
    raise MissingDependency(
        f"quietbit {context.info_name} is part of quietbit-lab, which is not installed: "
        f"{how_to_install('lab')}."
    )


_add_commands()
# Functions by the words that are typed.
COMMANDS: dict[tuple[str | None, ...], Any] = {
    (command.name,): command.callback for command in app.registered_commands
}
COMMANDS |= {("node", command.name): command.callback for command in node.registered_commands}


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(quietbit.__version__)
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
