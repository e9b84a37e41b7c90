"""Masked sums in one process, step by step, for tests that change something on the way."""

from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from quietbit.secagg import keys
from quietbit.secagg.client import SumClient, masking_key, pair_mask_key, self_mask_key
from quietbit.secagg.codec import write_tables
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.server import SumServer

DIMENSION = 11


@lru_cache(maxsize=128)
def identity(number):
    """The same for a number in every test of a process."""
    return Identity(bytes([number]) * 32)


def plan_of(
    clients,
    threshold,
    *,
    active=True,
    name=b"round",
    dimension=DIMENSION,
    terms=b"mechanism",
):
    members = tuple(identity(number).public for number in range(1, clients + 1)) if active else None
    return SumPlan(clients, threshold, dimension, name, members, terms)


def codes_for(plan, seed=5):
    rng = np.random.default_rng(seed)
    return {
        i: rng.integers(0, 2, plan.dimension, dtype=np.uint32) for i in range(1, plan.clients + 1)
    }


class Room:
    """All clients and the server of a sum, as far as a test has taken them."""

    def __init__(self, plan):
        self.plan, self.codes, self.server = plan, codes_for(plan), SumServer(plan)
        self.proof = {}
        self.clients = {
            i: SumClient(plan, i, identity(i) if plan.active else None) for i in self.codes
        }

    def advertised(self):
        self.published = {i: client.advertise() for i, client in self.clients.items()}
        for i, advertised in self.published.items():
            self.server.take_keys(i, advertised.to_bytes())
        self.roster = self.server.roster()
        return self

    def dealt(self, between=lambda: None):
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

    def masked(self, senders=None):
        self.dealt()
        for i in senders or self.codes:
            self.server.receive(i, self.mask(i))
        self.u2 = self.server.arrived()
        return self

    def mask(self, number, u1=frozenset()):
        """The vector of a client that is told of these dealers, or of all."""
        told = u1 or self.u1
        inbox = {dealer: data for dealer, data in self.inboxes[number].items() if dealer in told}
        return self.clients[number].mask(self.codes[number], told, inbox)

    def evidence(self, vectors):
        """What comes behind the vectors: signatures of who dealt shares."""
        return {i: vector[self.plan.payload_size :] for i, vector in vectors.items()}

    def pair_key(self, number, other, secret):
        """The key of a pair's mask, from the secret of ``number``."""
        ours, theirs = self.published[number].masking, self.published[other].masking
        private = masking_key(self.plan, number, secret)
        return pair_mask_key(self.server.description, number, other, private, ours, theirs)

    def stripped(self, number, vector, seed, pairs):
        """The codes of a client: its vector without its own mask and those of its pairs."""
        width = self.plan.width
        total = self.plan.unpack(number, vector).copy()
        total -= keys.expand(self_mask_key(self.server.description, number, seed), width)
        for other, key in pairs.items():
            mask = keys.expand(key, width)
            total = total - mask if number < other else total + mask
        return self.plan.reduce(total)[: self.plan.dimension]

    def confirmed(self, senders=None):
        self.masked(senders)
        self.confirm()
        return self

    def confirm(self):
        self.signatures = {i: self.clients[i].confirm(self.u2) for i in sorted(self.u2)}
        for i, signature in self.signatures.items():
            self.server.take_confirmation(i, signature)
        self.proof = self.server.confirmed()

    def answers(self):
        return {
            i: self.clients[i].unmask(self.u2, self.proof, self.server.masked(i))
            for i in sorted(self.u2)
        }

    def finish(self, answers):
        for i, answer in answers.items():
            self.server.take_unmasking(i, answer.to_bytes(self.plan))
        return self.server.finish()

    def plain(self, numbers):
        return sum(self.codes[i] for i in numbers)
