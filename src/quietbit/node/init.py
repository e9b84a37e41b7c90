"""A node's beginning: its policy written, and its ledger begun, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attrs import fields

from quietbit.errors import QuietbitError, check_known, require
from quietbit.mechanism.registry import families
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import SCOUT, Policy
from quietbit.target import Adjacency, Trust

__all__ = ["init"]

LEAST_EPSILON = 0.001
MECHANISMS = ("imvu", "vmvu", SCOUT)  # of one bit per parameter, of 80 bytes, and answers for a clip that moves


def init(
    path: str | os.PathLike[str],
    *,
    epsilon: float,
    adjacency: Adjacency | str,
    largest_clip: float,
    releases: int,
    releases_per_day: int,
    delta: float = 1e-5,
    mechanisms: tuple[str, ...] = MECHANISMS,
    ledger: str | os.PathLike[str] | None = None,
    counter: str | os.PathLike[str] | None = None,
    **rules: Any,
) -> Policy:
    """Write a node's policy and begin its ledger; nothing that exists is overwritten.

    Args:
        path: of the policy's file, which must not exist yet.
        epsilon: what all releases of this node together may ever cost.
        adjacency: what the neighbouring world is.
        largest_clip: updates are clipped to a ball no larger than this.
        releases: how many releases there may be, in all.
        releases_per_day: how many in any 24 hours.
        delta: of that epsilon.
        mechanisms: families that may be asked for; both of the paper's kind, and scouts, unless given.
        ledger: its path; beside the policy unless given.
        counter: its path, best on another disk; beside the policy unless given.
        rules: the other keys of a policy (`Policy`). Where ``min_honest_clients`` is among them, sums are allowed too.
    """
    place = Path(path).expanduser().absolute()
    require(not os.path.lexists(place), "policy", str(path), "a file that does not exist yet")
    if rules.get("min_honest_clients") is not None:
        rules = {"trust": (Trust.LOCAL, Trust.SECURE_AGGREGATION)} | rules
    for name in rules:
        check_known(name, [one.name for one in fields(Policy)], "rule of the policy")
    for name in mechanisms:
        check_known(name, (*families(), SCOUT), "mechanisms")
    found = Policy(
        epsilon=epsilon, adjacency=Adjacency(adjacency), largest_clip=largest_clip, releases=releases, delta=delta,
        releases_per_day=releases_per_day, mechanisms=mechanisms, ledger=str(ledger or place.parent / "ledger"),
        counter=str(counter or place.parent / "counter"), **{"least_epsilon": LEAST_EPSILON, **rules},
    )  # fmt: skip
    FileLedger.create(found.ledger, found.counter)
    try:
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(found.text())
    except OSError as error:
        raise QuietbitError(f"Cannot write the policy {place}: {error.strerror}.") from error
    return found
