"""One release on the client, from the server's question to what is encoded; and the books it is noted in.

Idea     everything that can be refused is refused before the app trains: the server's mechanism, the layout of the
         model, the budgets. After training there is one update, one line in the ledger, one release, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from logging import WARNING
from typing import final

from flwr.app import Array, ConfigRecord, Context, Message, RecordDict
from flwr.supercore import log

from quietbit._typing import FloatVector
from quietbit._validate import require
from quietbit.flower.budget import Budget, node_budget
from quietbit.flower.layout import Layout
from quietbit.flower.node_ledger import NodeLedger
from quietbit.flower.release import RECORD, Release, split_pieces
from quietbit.flower.request import Request
from quietbit.flower.rng import rng_for
from quietbit.flower.secure_terms import honest_for
from quietbit.flower.settings import RunSettings
from quietbit.flower.store import LedgerStore, StateStore, store_for
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import Mechanism
from quietbit.wire.uplink import Uplink

__all__ = ["Books", "Job"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Books:
    """The node's ledger, the budgets it is held to, and how many honest clients its sums count on (0: no sums)."""

    store: LedgerStore
    budgets: tuple[Budget, ...]
    run: int
    honest: int

    @classmethod
    def of(cls, context: Context, settings: RunSettings) -> Books:
        """The books of a node in a run."""
        honest, own = honest_for(settings, context.node_config), node_budget(context.node_config)
        budgets = (settings.budget,) if own is None else (settings.budget, own)
        store = store_for(context.node_config, context.state, lambda values: ConfigRecord(dict(values)))
        return cls(store, budgets, context.run_id, honest)

    def following(self, ledger: NodeLedger, mechanism: Mechanism, number: int) -> NodeLedger:
        """The ledger with a release in round ``number``; refused where a budget does not allow that."""
        found = ledger.record(mechanism, self.run, number, self.honest)
        for budget in self.budgets:
            found.check_budget(budget)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """All that is known about a release before the app trains."""

    request: Request
    node: int
    received: dict[str, Array]
    layout: Layout
    mechanism: Mechanism
    books: Books
    rng: RandomBits

    @classmethod
    def prepare(cls, message: Message, context: Context, settings: RunSettings, books: Books) -> Job:
        """Check the server's request; a `QuietbitError` is a reason not to answer."""
        request = Request.from_record(message.content.get(RECORD))
        records = message.content.array_records
        require(len(records) == 1, "number of ArrayRecords in the message", len(records), "1")
        received = dict(next(iter(records.values())))
        layout = Layout.of(received, settings)
        mechanism = settings.mechanism_for(layout.dimension)
        request.expect(mechanism)
        rng = rng_for(settings, context.node_config, request.round)
        job = cls(request, context.node_id, received, layout, mechanism, books, rng)
        job._following(books.store.read())
        return job

    def update(self, content: RecordDict) -> list[FloatVector]:
        """What the app has learnt, array by array."""
        records = content.array_records
        require(len(records) == 1, "number of ArrayRecords in the app's reply", len(records), "1")
        return self.layout.difference(self.received, next(iter(records.values())))

    def note(self) -> None:
        """Write the release into the ledger; refused where a budget does not allow it any more."""
        if isinstance(self.books.store, StateStore):
            _warn_without_file()
        self.books.store.update(self._following)

    def encode(self, update: list[FloatVector]) -> bytes:
        """The payload; to be called when the release is in the ledger, never before."""
        return Uplink(self.mechanism).send(update, self.rng)

    def pieces(self, payload: bytes) -> dict[str, dict[str, bytes]]:
        """The records of the release that carries a payload."""
        return split_pieces(Release(self.books.run, self.request.round, self.node, payload).to_bytes())

    def _following(self, ledger: NodeLedger) -> NodeLedger:
        return self.books.following(ledger, self.mechanism, self.request.round)


@cache  # once per process
def _warn_without_file() -> None:
    log(
        WARNING,
        "quietbit: this node's ledger is in Flower's memory alone: a restart, a new run or two messages at once "
        "lose it. In production its node config must have quietbit.ledger, the absolute path of a file.",
    )
