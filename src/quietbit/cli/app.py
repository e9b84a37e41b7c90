"""The command line assembled: commands grouped by what people want."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import quietbit
from quietbit.cli.calibrate import calibrate
from quietbit.cli.compare import compare
from quietbit.cli.doctor import doctor
from quietbit.cli.node import node
from quietbit.cli.options import help_text

__all__ = ["COMMANDS", "GROUPS", "app"]

# What people want, and the commands for it in the order in which they are listed.
GROUPS = {
    "Decide": ("compare", "calibrate", "privacy"),
    "Run": ("demo", "train", "sweep", "report", "data", "doctor"),
    "Study": ("design", "certify", "catalogue", "audit", "figure"),
    "Protect a device": ("node",),  # a group of its own, which typer lists last
}
OWN = (compare, calibrate, doctor)

app = typer.Typer(
    name="quietbit",
    help="Federated learning updates that leave the device private and packed to about one bit per parameter.",
    epilog="Every command takes --json. Start with: quietbit demo --out demo-output",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _add_commands() -> None:
    """Add our commands and those of other installed packages, the laboratory's among them, in the groups' order."""
    found: dict[str, Callable[..., Any]] = {command.__name__: command for command in OWN}
    found |= {entry.name: entry.load() for entry in entry_points(group="quietbit.commands")}
    groups = {name: group for group, names in GROUPS.items() for name in names}
    for name in sorted(
        found, key=lambda name: (list(groups).index(name) if name in groups else len(groups), name)
    ):
        panel = groups.get(name, "Added by other packages")
        app.command(name, help=help_text(found[name]), rich_help_panel=panel)(found[name])
    for command in node.registered_commands:
        command.help = help_text(command.callback)
    app.add_typer(node, rich_help_panel=groups["node"])


_add_commands()
# By the words that are typed.
COMMANDS: dict[tuple[str | None, ...], Any] = {
    (one.name,): one.callback for one in app.registered_commands
}
COMMANDS |= {("node", one.name): one.callback for one in node.registered_commands}


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
