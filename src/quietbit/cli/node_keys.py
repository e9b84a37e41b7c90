"""``quietbit node keys``: a node's identity for masked sums."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from quietbit.cli.console import JsonOption, Row, record
from quietbit.cli.options import absolute

__all__ = ["node_keys"]


def node_keys(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The private key.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Make this node's identity for masked sums, or show the public key of one that is there.

    The private key stays in FILE, which only its owner can read. Give the public key to the operator of the directory,
    by a way that the server is not part of.

    Example: quietbit node keys /var/lib/quietbit/own.pem
    """
    from quietbit.secagg.identity import Identity

    place = absolute(path)
    title, fresh = "The identity that is there", not os.path.lexists(place)
    if fresh:
        title = "A new identity"
        Identity.new().save(place)
    rows = [Row("file", "private key", str(place)), Row("public", "public key", Identity.load(place).public.hex())]
    record(title, rows, json)
