"""``quietbit node check``: whether a node's files are in order, or what would leave a site of NVFlare."""

from __future__ import annotations

from typing import Annotated

import typer
from attrs import asdict

from quietbit.cli.console import JsonOption, Row, record, show_json
from quietbit.cli.options import absolute
from quietbit.errors import require_module

__all__ = ["node_check"]

YES_NO = {True: "yes", False: "no"}


def node_check(
    policy: Annotated[
        str, typer.Argument(metavar="FILE", help="The policy, or NVFlare's privacy.json.", show_default=False)
    ],
    json: JsonOption = False,
) -> int:
    """Check the policy, the ledger's chain of lines, and its counter; the exit code is 1 if anything is wrong.

    Of NVFlare's privacy.json it says, scope by scope, what would leave the site; the exit code is 1 if any of it is not
    priced, and 2 if the file cannot be read.

    Example: quietbit node check /var/lib/quietbit/policy.toml
    """
    if policy.endswith(".json"):
        return _check_privacy_file(policy, json)
    from quietbit.node.ledger import FileLedger, LedgerError
    from quietbit.node.policy import Policy, PolicyError

    said, lines = "", 0
    try:
        found = Policy.load(absolute(policy))
        lines = FileLedger(found.ledger, found.counter).read().count
    except (LedgerError, PolicyError) as error:
        said = str(error)
    rows = [
        Row("fine", "fine", not said, YES_NO[not said]),
        Row("lines", "lines of the ledger", lines),
        Row("problem", "problem", said, said or "none"),
    ]
    record("This node's policy and ledger", rows, json)
    return 1 if said else 0


def _check_privacy_file(path: str, as_json: bool) -> int:
    require_module("nvflare", "nvflare")
    from quietbit.nvflare.check import check_privacy

    found = check_privacy(path)
    if as_json:
        show_json({"unpriced": found.unpriced, **asdict(found)})
        return int(found.unpriced)
    rows = [
        Row("unpriced", "anything unpriced would leave", found.unpriced, YES_NO[found.unpriced]),
        Row("component", "component stands", found.component, YES_NO[found.component]),
        *(Row("beside", "leaves", text) for text in found.beside),
    ]
    record(f"What would leave a site with {path}", rows)
    for one in found.scopes:
        rows = [
            Row("filters", "filters stand", f"data {YES_NO[one.data_filter]}, results {YES_NO[one.result_filter]}"),
            Row("owner", "owner", one.problem or one.owner),
            Row("leaves", "leaves", one.leaves),
        ]
        record(f"Scope {one.name or '(none named)'}{', the default' if one.default else ''}", rows)
    return int(found.unpriced)
