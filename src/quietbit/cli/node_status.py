"""``quietbit node status``: what a node has released, to whom, and what is left."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from quietbit.cli.console import JsonOption, Row, column_table, record, rounded_up, show_json
from quietbit.cli.options import PolicyArgument, absolute

__all__ = ["node_status"]


def node_status(
    policy: PolicyArgument,
    last: Annotated[int, typer.Option(help="How many runs to list, the latest last.")] = 20,
    json: JsonOption = False,
) -> None:
    """Say what was released, when, to which run, and what is left.

    Example: quietbit node status /var/lib/quietbit/policy.toml
    """
    from quietbit.node.ledger import FileLedger, Moment
    from quietbit.node.policy import Policy
    from quietbit.node.release import reached

    found = Policy.load(absolute(policy))
    books = FileLedger(found.ledger, found.counter).read()
    caps: list[dict[str, Any]] = []
    for cap in found.caps():
        upper = reached(books, cap, found, found.min_honest_clients or 0, found.least_epsilon)
        caps.append({"trust": cap.trust.value, "epsilon": cap.epsilon, "epsilon_upper": upper, "delta": cap.delta})
    runs: list[dict[str, Any]] = [
        {
            "run": run, "releases": len(made), "first": _moment(made[0][1]), "last": _moment(made[-1][1]),
            "mechanisms": sorted({name[:16] for _, _, name in made}),
        }
        for run, made in books.runs.items()
    ]  # fmt: skip
    today = books.last_day(Moment.now())
    if json:
        show_json({
            "releases": books.releases, "releases_left": max(0, found.releases - books.releases), "today": today,
            "today_left": max(0, found.releases_per_day - today), "adjacency": found.adjacency.value,
            "unit": found.unit.value, "data_set": found.data_set, "caps": caps, "runs": runs,
        })  # fmt: skip
        return
    rows = [
        Row("releases", "releases", books.releases, f"{books.releases} of {found.releases}"),
        Row("today", "in the last 24 hours", today, f"{today} of {found.releases_per_day}"),
    ]
    whose = found.adjacency.value + (f", any sample of {found.data_set}" if found.data_set else "")
    for one in caps:
        spent = f"{rounded_up(one['epsilon_upper'], 4)} of {one['epsilon']:g} at delta {one['delta']:g}, {whose}"
        rows.append(Row(one["trust"], f"epsilon ({one['trust']})", one["epsilon_upper"], spent))
    record("What this node has released", rows)
    if runs:
        heads = ("run", "releases", "first", "last", "mechanisms")
        for one in runs:
            one["mechanisms"] = ", ".join(one["mechanisms"])
        column_table("To whom", heads, [[str(one[head]) for head in heads] for one in runs[-last:]])


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
