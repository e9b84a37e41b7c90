"""Masked sums in one process, step by step, for tests that change something on the way."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import Unmasking, write_tables
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.server import MaskedSum, SumServer

DIMENSION = 11


@lru_cache(maxsize=128)
def identity(number: int) -> Identity:
    """The same for a number in every test of a process."""
    return Identity(bytes([number]) * 32)


def plan_of(
    clients: int,
    threshold: int,
    *,
    active: bool = True,
    name: bytes = b"round",
    dimension: int = DIMENSION,
    terms: bytes = b"mechanism",
) -> SumPlan:
    members = tuple(identity(number).public for number in range(1, clients + 1)) if active else None
    return SumPlan(clients, threshold, dimension, name, members, terms)


def codes_for(plan: SumPlan, seed: int = 5) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        i: rng.integers(0, 2, plan.dimension, dtype=np.uint32) for i in range(1, plan.clients + 1)
    }


class Room:
    """All clients and the server of a sum, as far as a test has taken them."""

    def __init__(self, plan: SumPlan) -> None:
        self.plan, self.codes, self.server = plan, codes_for(plan), SumServer(plan)
        self.proof: dict[int, bytes] = {}
        self.clients = {
            i: SumClient(plan, i, identity(i) if plan.active else None) for i in self.codes
        }

    def advertised(self) -> Room:
        self.published = {i: client.advertise() for i, client in self.clients.items()}
        for i, advertised in self.published.items():
            self.server.take_keys(i, advertised.to_bytes())
        self.roster = self.server.roster()
        return self

    def dealt(self, between: Callable[[], None] = lambda: None) -> Room:
        """Let clients deal their shares; ``between`` is called after each step."""
        self.advertised()
        between()
        self.parts = {i: client.share(self.roster) for i, client in self.clients.items()}
        for i, dealt in self.parts.items():
            self.server.take_shares(i, write_tables(self.plan, dealt))
        self.inboxes = self.server.inboxes()
        self.u1 = frozenset(self.inboxes)
        between()
        return self

    def masked(self, senders: list[int] | None = None) -> Room:
        self.dealt()
        for i in senders or self.codes:
            self.server.receive(i, self.clients[i].mask(self.codes[i], self.u1, self.inboxes[i]))
        self.u2 = self.server.arrived()
        return self

    def confirmed(self, senders: list[int] | None = None) -> Room:
        self.masked(senders)
        self.confirm()
        return self

    def confirm(self) -> None:
        self.signatures = {i: self.clients[i].confirm(self.u2) for i in sorted(self.u2)}
        for i, signature in self.signatures.items():
            self.server.take_confirmation(i, signature)
        self.proof = self.server.confirmed()

    def answers(self) -> dict[int, Unmasking]:
        return {
            i: self.clients[i].unmask(self.u2, self.proof, self.server.masked(i))
            for i in sorted(self.u2)
        }

    def finish(self, answers: dict[int, Unmasking]) -> MaskedSum:
        for i, answer in answers.items():
            self.server.take_unmasking(i, answer.to_bytes(self.plan))
        return self.server.finish()

    def plain(self, numbers) -> np.ndarray:
        return sum(self.codes[i] for i in numbers)
