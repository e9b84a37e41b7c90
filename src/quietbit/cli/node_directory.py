"""``quietbit node directory``: the signed list of nodes that take part in masked sums."""

from __future__ import annotations

from typing import Annotated

import typer

from quietbit._files import write_text
from quietbit.cli.console import JsonOption, column_table, show_json
from quietbit.cli.options import absolute
from quietbit.errors import QuietbitError, require

__all__ = ["node_directory"]


def node_directory(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The directory.", show_default=False)],
    operator: Annotated[
        str, typer.Option(help="The operator's private key, to sign a directory, or public key, to check one.")
    ],
    members: Annotated[
        str | None, typer.Option(help="A text file to sign: on every line a public key and a name.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sign the list of members of masked sums, or check and show one.

    Whoever signs it vouches that its members are different nodes, and must not be the server. Nodes' owners write the
    operator's public key down in their policies (quietbit node init --operator). A new list replaces an old one.

    Example: quietbit node directory members.json --operator operator.pem --members nodes.txt
    """
    from quietbit.secagg.identity import Directory, Identity

    place = absolute(path)
    if members is not None:
        signer = Identity.load(absolute(operator))
        found, public = Directory.of(_members(members)), signer.public
        write_text(place, found.signed(signer), make_folder=False)
    else:
        public = _key(operator, "operator")
        found = Directory.load(place, public)
    named = [{"name": one.name, "key": one.key.hex()} for one in found.members]
    if json:
        show_json({"directory": str(place), "operator": public.hex(), "members": named})
        return
    title = f"{len(named)} members, signed by {public.hex()}"
    column_table(title, ["name", "public key"], [list(one.values()) for one in named])


def _members(path: str) -> list[tuple[str, bytes]]:
    try:
        lines = [line.strip() for line in absolute(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise QuietbitError(f"Cannot read the members {path}: {error}.") from error
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name.strip(), _key(key, "key of a member")) for key, _, name in pairs]


def _key(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    require(len(found) == 32, name, text, "64 hexadecimal digits")
    return found
