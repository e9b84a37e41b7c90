"""What commands print: a table for people or JSON for machines, and progress on stderr.

Idea     a command makes its rows once, and both forms are made from them. Progress goes to stderr,
         so it never mixes with the result.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from quietbit.privacy.guarantee import rounded_up as decimal_above

__all__ = [
    "JsonOption",
    "Report",
    "Row",
    "column_table",
    "progress_bar",
    "record",
    "rounded",
    "rounded_up",
    "show_json",
    "shown",
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of a table (infinity becomes null).")
]
Report: TypeAlias = Callable[[float, str], None]
PIPE_WIDTH = 110  # columns when the output is not a terminal


class Row(NamedTuple):
    """One fact: its key in JSON, its label in tables, the value, and how tables show it."""

    key: str
    label: str
    value: Any
    shown: str = ""


def record(title: str, rows: Sequence[Row], as_json: bool = False) -> None:
    """Print rows as a JSON object or a two-column table; a list of objects is its own table."""
    if as_json:
        show_json({row.key: row.value for row in rows})
        return
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    listed = [
        row
        for row in rows
        if isinstance(row.value, list) and row.value and isinstance(row.value[0], dict)
    ]
    for row in rows:
        if row not in listed:
            table.add_row(row.label, Text(row.shown or shown(row.key, row.value)))
    _print(title, table)
    for row in listed:
        lines = [[shown(key, value) for key, value in line.items()] for line in row.value]
        column_table(row.label, [head.replace("_", " ") for head in row.value[0]], lines)


def column_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table with one column per head: the first has text, the others numbers."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(heads[0], no_wrap=True, overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    _print(title, table)


def shown(key: str, value: Any) -> str:
    """Return a value as text: six digits, upper bounds rounded up, and None as nothing."""
    if value is None:
        return ""
    if isinstance(value, float):
        if key.endswith("_upper"):
            return rounded_up(value)
        return rounded(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(shown(key, item) for item in value)
    return str(value)


def show_json(value: Any) -> None:
    """Print strict JSON: numbers that are not finite become null."""
    plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(plain, indent=2, allow_nan=False))


@contextmanager
def progress_bar(
    what: str, quiet: bool = False, lines: bool = False, every: float = 0.0
) -> Iterator[Report]:
    """Show a progress bar on a terminal's stderr, and yield ``report(fraction, message)``.

    With ``lines``, a stderr that is not a terminal gets a line per message instead, at most one per
    ``every`` seconds.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=1.0)
        furthest = 0.0
        last = -math.inf

        def report(fraction: float, message: str) -> None:
            nonlocal furthest, last
            furthest = max(furthest, fraction)  # a search that starts over moves nothing back
            progress.update(task, completed=furthest, description=f"{what}: {message}")
            if lines and not quiet and not console.is_terminal and time.monotonic() - last >= every:
                last = time.monotonic()
                print(f"{what}: {message}", file=sys.stderr, flush=True)

        yield report


def rounded(value: float, digits: int = 6) -> str:
    """Return a value as text, rounded to ``digits`` digits."""
    return f"{value:.{digits}g}"


def rounded_up(value: float, digits: int = 6) -> str:
    """Return an upper bound as text that is never below the value."""
    if not math.isfinite(value):
        if value > 0:
            return "infinite"
        return str(value)
    up = decimal_above(value, digits).normalize()
    if up == 0 or Decimal("1e-4") <= abs(up) < Decimal("1e9"):
        return f"{up:f}"
    return f"{up:e}"


def _print(title: str, table: Table) -> None:
    # A pipe has no width of its own; rich would fold tables at 80 columns.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(Text(title, style="bold"), table, sep="\n")
