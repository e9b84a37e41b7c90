"""Search everything that a server and its colluders can say in a small masked sum, against the real
client code.

Idea     clients meet only through the server, so an attack is what each honest client is told:
         which terms, which roster (who advertised, and what), which U1 and U2, with which shares
         and signatures. All of that is enumerated; what a client takes is found by calling
         `SumClient`, on copies, and the masks and shares that come out are those it made. Then the server's knowledge is plain algebra: a secret is known with enough
         shares, a mask with the secret of one of its ends, and a combination of vectors is read
         when all masks in it are known or cancel.
Symbols  H: honest clients; a *lie* is one choice of all of the above for all of H.

Stages are tried in order, all clients at each: no input of a stage needs an output of a later one,
except secrets that came out already, and then the search has ended. What is refused adds nothing;
what is given up only adds to what the server knows, so a client that could be asked more is asked.
Only the arithmetic of keys is replaced, by one that obeys the same laws and is quick; every check,
digest, derivation, seal and signature is the client's own.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import combinations, product
from unittest.mock import patch

import numpy as np
from attrs import define, evolve, field, fields

from federation.secagg.kit import identity, plan_of
from quietbit.errors import QuietbitError
from quietbit.secagg import client as client_module
from quietbit.secagg import codec, keys
from quietbit.secagg.client import PAIR, SEED, SumClient, lists_digest, shares_digest
from quietbit.secagg.codec import CONFIRMED, MASKED, Advertisement

P = 2**61 - 1
FIELDS = [one.name for one in fields(SumClient)]
TRUE, QUIET = b"the run's mechanism", b"a mechanism without noise"
CODES = np.zeros(1, dtype=np.uint32)


def subsets(items, least=0):
    """All subsets of at least so many."""
    found = sorted(items)
    return [
        frozenset(some)
        for size in range(least, len(found) + 1)
        for some in combinations(found, size)
    ]


def _public(private):
    return pow(3, int.from_bytes(bytes(private), "little") % P, P).to_bytes(32, "little")


def _agree(private, public):
    shared = pow(int.from_bytes(public, "little"), int.from_bytes(bytes(private), "little") % P, P)
    return shared.to_bytes(32, "little")


def _derive(secret, purpose, context):
    return hashlib.sha256(bytes(secret) + b"/" + purpose + b"/" + context).digest()


def _seal(key, plain, context):
    return (
        plain + hashlib.sha256(key + plain + context).digest()[:16]
    )  # nobody reads what is not theirs below


def _open(key, sealed, context):
    if _seal(key, sealed[:-16], context) != sealed:
        raise keys.InvalidParameter("sealed shares must be genuine, got others.")
    return sealed[:-16]


@define(eq=False)
class Dealt:
    """A client that has dealt shares, what it was told, and what it sent."""

    client: SumClient
    parts: dict[int, bytes]
    roster: dict[int, Advertisement]
    terms: bytes


@define(eq=False)
class Sent:
    """A client that has sent its vector: its U1, its signature, its own mask, and those it
    shares with others.
    """

    client: SumClient
    u1: frozenset[int]
    signature: bytes
    own: bytes
    shared: list[tuple[int, bytes]]


@define(slots=False)
class Search:
    """A sum of ``n`` clients, some of whom collude."""

    n: int
    t: int
    bad: frozenset[int]
    honest: int  # the least number of honest clients, of like terms, that a sum may be over
    terms: tuple[bytes, ...] = (TRUE,)
    leaves: int = 0
    asked: int = 0
    masks: list[tuple[int, bytes]] = field(factory=list)
    found: dict = field(factory=dict)

    @property
    def good(self):
        return [i for i in range(1, self.n + 1) if i not in self.bad]

    def run(self):
        """Return the first lie that exposes somebody, or None when there is none."""
        with self._quick_keys():
            self.plans = {
                terms: plan_of(self.n, self.t, terms=terms, dimension=1) for terms in self.terms
            }
            self.old = {
                t: plan_of(self.n, self.t, terms=t, dimension=1, name=b"old") for t in self.terms
            }
            self._start()
            for terms in product(self.terms, repeat=len(self.good)):
                lie = self._lie(dict(zip(self.good, terms, strict=True)))
                if lie is not None:
                    return lie
        return None

    @contextmanager
    def _quick_keys(self):
        def expand(key, width):
            self.masks.append(key)
            return np.zeros(width, dtype=np.uint32)

        stand_ins = {
            "public_key": _public,
            "agree": _agree,
            "derive": _derive,
            "seal": _seal,
            "open_sealed": _open,
            "expand": expand,
            "check_public": lambda key: None,
        }
        with ExitStack() as stack:
            for name, function in stand_ins.items():
                stack.enter_context(patch.object(keys, name, function))
            yield

    def _start(self):
        """Stage 1, for all terms, of this round and of an earlier one."""
        self.clients, self.ads, self.own = {}, {}, {}
        self.ours = {}  # the server's own clients, by their advertisements
        for plans, name in ((self.plans, "now"), (self.old, "old")):
            for terms, plan in plans.items():
                for i in range(1, self.n + 1):
                    client = SumClient(plan, i, identity(i))
                    one = client.advertise()
                    self.ads[i, terms, name] = one
                    if i in self.good:
                        self.clients[i, terms, name] = client
                    else:
                        self.ours[one] = client

    def _lie(self, terms):
        """Stages 2 to 5 for given terms."""
        options = [self._rosters(i, terms) for i in self.good]
        for rosters in product(*options):
            dealt = dict(zip(self.good, rosters, strict=True))
            vectors = [self._vectors(i, dealt) for i in self.good]
            for masked in product(*vectors):
                sent = {i: one for i, one in zip(self.good, masked, strict=True) if one is not None}
                for lists in product(*(self._lists(i, sent) for i in self.good)):
                    told = {i: u2 for i, u2 in zip(self.good, lists, strict=True) if u2 is not None}
                    self.leaves += 1
                    if self._exposed(terms, dealt, sent, told):
                        return {"terms": terms, "rosters": dealt, "sent": sent, "u2": told}
        return None

    def _rosters(self, i, terms):
        """Everything client i takes for a roster, by effect."""
        mine = terms[i]
        key = "roster", i, tuple(sorted(terms.items()))
        if key in self.found:
            return self.found[key]
        taken = {}
        for u0 in reversed(subsets(self._all_but(i))):
            self._try_roster(i, mine, {j: self._advertised(j, terms, mine) for j in u0}, taken)
        self._try_false(i, terms, taken)
        self.found[key] = list(taken.values()) or [None]
        return self.found[key]

    def _advertised(self, j, terms, mine):
        """What client j sends: an honest one under its own terms, a colluder as it is wanted."""
        return self.ads[j, terms.get(j, mine), "now"]

    def _all_but(self, i):
        return frozenset(range(1, self.n + 1)) - {i}

    def _try_false(self, i, terms, taken):
        """In the place of some: replays of an earlier round, another's advertisement, or one
        that the server made.
        """
        mine = terms[i]
        others = sorted(self._all_but(i))
        full = {j: self._advertised(j, terms, mine) for j in others}
        for j, one in full.items():
            if j in self.good and (j, mine) not in self.own:
                self.own[j, mine] = self._impostor(j, mine)
            false = {
                "old": self.ads.get((j, mine, "old"), one),
                "twice": full[others[others[0] == j]],
            }
            for other in false.values():
                self._try_all(i, mine, {**full, j: other}, taken)
        for some in subsets(set(full) - self.bad, 1):
            self._try_all(i, mine, {**full, **{j: self.own[j, mine] for j in some}}, taken)

    def _try_all(self, i, mine, ads, taken):
        for u0 in subsets(ads):
            self._try_roster(i, mine, {j: ads[j] for j in u0}, taken)

    def _impostor(self, j, terms):
        """A client in the place of an honest one, of whom the server knows everything but the
        identity.
        """
        client = SumClient(self.plans[terms], j, identity(j))
        one = evolve(client.advertise(), signature=bytes(64))
        self.ours[one] = client
        return one

    def _try_roster(self, i, terms, others, taken):
        client = clone(self.clients[i, terms, "now"])
        roster = {**others, i: self.ads[i, terms, "now"]}
        self.asked += 1
        try:
            parts = client.share(roster)
        except QuietbitError:
            return
        effect = (
            client._description,
            frozenset(parts),
            tuple(sorted(roster.items())),
        )
        taken.setdefault(effect, Dealt(client, parts, roster, terms))

    def _vectors(self, i, dealt):
        """Every U1 that client i sends a vector for, given what the others dealt: (u1, client,
        signature, masks).
        """
        if dealt[i] is None:
            return [None]
        client, roster, terms = dealt[i].client, dealt[i].roster, dealt[i].terms
        from_whom = sorted(set(client._others) - self.bad)
        key = "vector", i, id(client), tuple(id(dealt[j]) for j in from_whom)
        if key in self.found:
            return self.found[key]
        taken = []
        for u1 in subsets(self._all_but(i)):
            listed = u1 | {i}
            inbox = {}
            for j in listed & set(client._others):
                if roster[j] in self.ours:
                    inbox[j] = self._from_server(self.ours[roster[j]], j, i, client, terms)
                elif dealt[j] is not None and i in dealt[j].parts:
                    inbox[j] = dealt[j].parts[i]
            after = clone(client)
            self.masks.clear()
            self.asked += 1
            try:
                data = after.mask(CODES, listed, inbox)
            except QuietbitError:
                continue
            used = list(zip(sorted(u1), self.masks[1:], strict=True))  # in the order of `mask`
            taken.append(
                Sent(after, listed, data[self.plans[terms].payload_size :], self.masks[0], used)
            )
        self.found[key] = taken or [None]
        return self.found[key]

    def _from_server(self, maker, j, i, client, terms):
        """What a colluder or impostor deals to a client, whatever that takes for the description
        of the round.
        """
        maker = clone(maker)
        maker._description, maker._others = client._description, {i: self.ads[i, terms, "now"]}
        parts = bytes(keys.SHARE_SIZE), bytes(keys.SHARE_SIZE)
        sealed = _seal(maker._sealing_key(j, i), b"".join(parts), codec.as_bytes(j, i))
        return sealed + client_module._commitments(client._description, j, i, parts)

    def _lists(self, i, sent):
        """Every U2 that client i signs."""
        if i not in sent:
            return [None]
        key = "lists", i, id(sent[i])
        if key not in self.found:
            taken = []
            for u2 in subsets(range(1, self.n + 1)):
                self.asked += 1
                try:
                    after = clone(sent[i].client)
                    taken.append((u2, after, after.confirm(u2)))
                except QuietbitError:
                    continue
            self.found[key] = {u2: (after, signature) for u2, after, signature in taken}
        return list(self.found[key]) or [None]

    def _answers(self, i, sent, told):
        """Whose shares client i gives up with the best evidence there is: (dealer, kind)."""
        plan, described = sent[i].client._plan, sent[i].client._description
        u1, u2 = sent[i].u1, told[i]
        signatures, first = {}, {}
        for j in range(1, self.n + 1):
            if j in self.bad:
                signatures[j] = identity(j).sign(CONFIRMED, lists_digest(plan, described, u1, u2))
                first[j] = identity(j).sign(MASKED, shares_digest(plan, described, u1))
            elif j in sent:
                first[j] = sent[j].signature
                if j in told:
                    signatures[j] = self.found["lists", j, id(sent[j])][told[j]][1]
        key = (
            "answer",
            i,
            id(sent[i]),
            u2,
            tuple(sorted(signatures.items())),
            tuple(sorted(first.items())),
        )
        if key not in self.found:
            given = frozenset()
            for some in subsets(set(signatures) & u2, plan.threshold) or [frozenset()]:
                after = clone(self.found["lists", i, id(sent[i])][u2][0])
                self.asked += 1
                try:
                    answer = after.unmask(u2, {j: signatures[j] for j in some}, first)
                except QuietbitError:
                    continue
                given = frozenset(
                    {(j, PAIR) for j in answer.pair_keys} | {(j, SEED) for j in answer.seeds}
                )
                break
            self.found[key] = given
        return self.found[key]

    def _exposed(self, terms, dealt, sent, told):
        """Whether a combination of vectors is read that is over fewer clients of like terms than
        it should be.
        """
        held = {(i, kind): set() for i in self.good for kind in (PAIR, SEED)}
        for i in self.good:
            if dealt[i] is not None:
                lost = {j for j in dealt[i].parts if dealt[i].roster[j] in self.ours}
                for kind in (PAIR, SEED):
                    held[i, kind] |= lost
        for i in told:
            for j, kind in self._answers(i, sent, told):
                if j in self.good:
                    held[j, kind].add(i)
        known = {
            what
            for what, holders in held.items()
            if len(holders) >= self.plans[self.terms[0]].threshold
        }
        senders = sorted(sent)
        unknown = {}
        for i in senders:
            if (i, SEED) not in known:
                unknown.setdefault(sent[i].own, {})[i] = 1
            for j, mask in sent[i].shared:
                ours = dealt[i].roster[j] in self.ours
                if not ours and (i, PAIR) not in known and (j, PAIR) not in known:
                    unknown.setdefault(mask, {})[i] = 1 if i < j else -1
        return _readable(
            tuple(senders),
            tuple(tuple(sorted(one.items())) for one in unknown.values()),
            tuple(terms[i] for i in senders),
            self.honest,
        )


@lru_cache(maxsize=1 << 16)
def _readable(senders, unknown, terms, honest):
    for signs in product((0, 1, -1), repeat=len(senders)):
        if not any(signs):
            continue
        weight = dict(zip(senders, signs, strict=True))
        if all(sum(weight[i] * sign for i, sign in mask) == 0 for mask in unknown):
            inside = [terms[place] for place, sign in enumerate(signs) if sign]
            if min(inside.count(one) for one in inside) < honest:
                return True
    return False


def clone(client):
    """A copy that can be asked something without the other noticing."""
    new = object.__new__(SumClient)
    for name in FIELDS:
        value = getattr(client, name)
        if name == "_secrets":
            value = {kind: bytearray(secret) for kind, secret in value.items()}
        elif isinstance(value, bytearray | dict):
            value = value.copy()
        setattr(new, name, value)
    return new
