"""The command line assembled: commands grouped by what people want."""

from __future__ import annotations

from collections.abc import Callable
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
from quietbit.cli.node import node_check, node_directory, node_init, node_keys, node_serve, node_status
from quietbit.cli.privacy import privacy

__all__ = ["COMMANDS", "GROUPS", "app"]

# What people want, and the commands for it in the order in which they are listed.
GROUPS = {
    "Decide": ("compare", "calibrate", "privacy"),
    "Run": ("demo", "train", "sweep", "report", "data", "doctor"),
    "Study": ("design", "certify", "catalogue", "audit", "figure"),
    "Protect a device": ("node",),  # a group of its own, which typer lists last
}
OTHERS = "Added by other packages"
OWN = (compare, calibrate, privacy, doctor, design, certify, catalogue, audit)
OF_NODE = (node_init, node_check, node_status, node_serve, node_keys, node_directory)


def _group_of(name: str) -> str:
    return next((group for group, names in GROUPS.items() if name in names), OTHERS)


def _commands() -> dict[str, Callable[..., Any]]:
    """Return our commands and those of other installed packages, the laboratory's among them, in the groups' order."""
    found = {command.__name__: command for command in OWN}
    found |= {entry.name: entry.load() for entry in entry_points(group="quietbit.commands")}
    order = [name for names in GROUPS.values() for name in names]
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 99, item[0])))


app = typer.Typer(
    name="quietbit",
    help="Federated learning updates that leave the device private and packed to about one bit per parameter.",
    epilog="Every command takes --json. Start with: quietbit demo --out demo-output",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
node = typer.Typer(
    name="node",
    help="What a device releases is its owner's decision: a policy, a ledger, and a gatekeeper that keeps both.",
    epilog="Start with: quietbit node init --help",
    no_args_is_help=True,
)
COMMANDS: dict[tuple[str, ...], Callable[..., Any]] = {}  # by the words that are typed
for name, command in _commands().items():
    app.command(rich_help_panel=_group_of(name))(command)
    COMMANDS[name,] = command
for command in OF_NODE:
    name = command.__name__.removeprefix("node_")
    node.command(name)(command)
    COMMANDS["node", name] = command
app.add_typer(node, rich_help_panel=_group_of("node"))


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(quietbit.__version__)
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
