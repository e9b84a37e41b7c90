"""``quietbit node check privacy.json``: what would leave a site of NVFlare with this file."""

from __future__ import annotations

from attrs import asdict

from quietbit.cli.console import Row, record, show_json
from quietbit.errors import require_module

__all__ = ["check_privacy_file"]


def check_privacy_file(path: str, json: bool) -> int:
    """Print what would leave, scope by scope; return 1 where any of it is not priced, else 0."""
    require_module("nvflare", "nvflare")
    from quietbit.nvflare.check import check_privacy

    found = check_privacy(path)
    if json:
        show_json({"unpriced": found.unpriced, **asdict(found)})
        return int(found.unpriced)
    words = {True: "yes", False: "no"}
    rows = [
        Row("unpriced", "anything unpriced would leave", found.unpriced, words[found.unpriced]),
        Row("component", "component stands", found.component, words[found.component]),
        *(Row("beside", "leaves", text) for text in found.beside),
    ]
    record(f"What would leave a site with {path}", rows, False)
    for one in found.scopes:
        stand = f"data {words[one.data_filter]}, results {words[one.result_filter]}"
        rows = [
            Row("filters", "filters stand", stand),
            Row("owner", "owner", one.problem or one.owner),
            Row("leaves", "leaves", one.leaves),
        ]
        record(f"Scope {one.name or '(none named)'}{', the default' if one.default else ''}", rows, False)
    return int(found.unpriced)
