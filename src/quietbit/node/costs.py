"""Divergences that take long to compute, saved in the ledger's database: found once per node.

Idea     an account of masked sums needs some hundred Rényi divergences per mechanism, each found
         by a numerical search. A node that starts a process per message would repeat them. A
         divergence is a function of the mechanism, the terms and this code, so the table keeps the
         numbers under a digest of all three: after any change of the package, or an upgrade of
         numpy or scipy, none of the old numbers is used. Who could change them could change the
         ledger.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import final

from attrs import field, frozen

import quietbit
from quietbit.node.ledger import LedgerError, opened
from quietbit.privacy.release import Divergence

__all__ = ["SavedCosts", "cost_version", "costs_beside"]

LOGGER = logging.getLogger(__name__)
MOST_COSTS = 2**17  # rows, of some hundred bytes each; beyond it, all are found again


@cache
def cost_version() -> str:
    """Return a digest of what costs depend on besides the mechanism: code, numpy and scipy."""
    digest = hashlib.sha256()
    package = Path(quietbit.__file__).parent
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for name in ("numpy", "scipy"):
        digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()


@final
@frozen
class CachedBound:
    """A Rényi bound whose value at each order is computed once per ledger and version."""

    name: str
    bound: Divergence = field(eq=False, repr=False)
    saved: SavedCosts = field(eq=False, repr=False)

    def __call__(self, alpha: float) -> float:
        """Return the bound at the order ``alpha``."""
        key = (self.name, alpha)
        value = self.saved.values.get(key)
        if value is None:
            value = self.bound(alpha)
            self.saved.values[key] = value
            self.saved.new.append((*key, value))
        return value


@final
class SavedCosts:
    """The divergences of one ledger; `save` adds what was computed since they were read."""

    def __init__(self, ledger: Path) -> None:
        """Name the ledger."""
        self._ledger = ledger
        self.new: list[tuple[str, float, float]] = []

    @cached_property
    def values(self) -> dict[tuple[str, float], float]:
        """What this code has saved, by the bound's name and the order."""
        with opened(self._ledger, "ledger") as database:
            rows = database.execute(
                "select bound, alpha, value from costs where version = ?", (cost_version(),)
            )
            return {(name, alpha): value for name, alpha, value in rows}

    def cached(self, name: str, bound: Divergence) -> Divergence:
        """Return the bound with its saved values; ``name`` identifies mechanism and terms."""
        return CachedBound(name, bound, self)

    def save(self) -> None:
        """Write what is new; where that fails, log it: only time is lost."""
        new = self.new
        self.new = []
        rows = [(cost_version(), *values) for values in new[-MOST_COSTS:]]
        try:
            with opened(self._ledger, "ledger", write=True) as database:
                database.execute("delete from costs where version != ?", (cost_version(),))
                (count,) = database.execute("select count(*) from costs").fetchone()
                if count + len(rows) > MOST_COSTS:
                    database.execute("delete from costs")
                database.executemany("insert or replace into costs values (?, ?, ?, ?)", rows)
        except LedgerError as error:
            LOGGER.warning("quietbit: costs are not saved, and will be computed again: %s", error)


@cache
def costs_beside(ledger: Path) -> SavedCosts:
    """Return the saved costs of a ledger, once per process."""
    return SavedCosts(ledger)
