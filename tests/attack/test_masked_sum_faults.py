"""Attacks that once read single clients out of masked sums, played against the real protocol.

Idea     an attack is played twice: against the clients as they are, who refuse it before they give
         anything up; and against clients without the one check that stops it, where the victim's
         codes are read. So it is an attack, and the check is what stops it.
"""

import numpy as np
import pytest
from attrs import evolve

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import Room, codes_for, identity, plan_of
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node.policy import Policy
from quietbit.node.refusal import NotAllowed
from quietbit.secagg import keys
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.secagg.server import SumServer, simulate_secure_sum

VICTIM = 7


def clients_told(terms, clients=20):
    plans = {i: plan_of(clients, clients, terms=terms[i]) for i in terms}
    return {i: SumClient(plans[i], i, identity(i)) for i in terms}


def test_a_server_cannot_give_the_others_a_mechanism_without_noise():
    """n = t = 20, no colluders, genuine lists: only the victim's codes are not known beforehand."""
    true, quiet = b"the mechanism of the run", b"one bit, P(1) = 2^-21"
    people = clients_told({i: true if i == VICTIM else quiet for i in range(1, 21)})
    server = SumServer(plan_of(20, 20, terms=quiet))
    for i, client in people.items():
        if i != VICTIM:
            server.take_keys(i, client.advertise().to_bytes())
    with pytest.raises(ProtocolError, match=f"signature of client {VICTIM}"):
        server.take_keys(VICTIM, people[VICTIM].advertise().to_bytes())
    with pytest.raises(ProtocolError, match="Only 19 clients published keys"):
        server.roster()
    # A server that forwards everything all the same is told so by both sides.
    people = clients_told({i: true if i == VICTIM else quiet for i in range(1, 21)})
    room = Room(plan_of(20, 20, terms=quiet)).advertised()
    mine = people[VICTIM].advertise()
    for i, client in people.items():
        if i != VICTIM:
            client = room.clients[i]
        with pytest.raises(ProtocolError, match="signature of client"):
            client.share({**room.roster, VICTIM: mine})


def test_without_the_mechanism_in_the_plan_the_victim_is_read():
    """The same, with terms that do not reach the context: the sum of twenty is the victim's
    codes.
    """
    plan = plan_of(20, 20, terms=b"whatever the server told each client")
    codes = {i: np.zeros(plan.dimension, dtype=np.uint32) for i in range(1, 21)}
    codes[VICTIM] = codes_for(plan)[VICTIM]
    people = {i: identity(i) for i in codes}
    assert (simulate_secure_sum(plan, codes, identities=people).total == codes[VICTIM]).all()


def test_a_roster_of_other_clients_is_another_round():
    """The victim is not told of one client: nobody opens its shares, and it opens nobody's."""
    plan = plan_of(10, 9)
    room = Room(plan).advertised()
    less = {i: one for i, one in room.roster.items() if i != 3}
    parts = {
        i: client.share(less if i == VICTIM else room.roster) for i, client in room.clients.items()
    }
    for holder in sorted(set(less) - {VICTIM}):
        dealt = {i: parts[i][holder] for i in range(1, 11) if i != holder}
        with pytest.raises(
            ProtocolError, match=f"client {VICTIM} dealt to client {holder} is not genuine"
        ):
            room.clients[holder].mask(room.codes[holder], range(1, 11), dealt)
    told = {i: parts[i][VICTIM] for i in less if i != VICTIM}
    with pytest.raises(QuietbitError):
        room.clients[VICTIM].mask(room.codes[VICTIM], set(less), told)


def test_as_many_colluders_as_the_threshold_read_without_a_lie_and_are_counted():
    """n = 20, t = 11, an honest-but-curious server: eleven colluders hold both secrets of all."""
    plan = plan_of(20, 11, active=False)
    room = Room(plan).dealt()
    vector = room.mask(VICTIM)
    held = {}
    for i in [i for i in room.clients if i != VICTIM][:11]:
        held[i] = room.clients[i].check_shares(room.u1, room.inboxes[i])[VICTIM]
    pair, seed = (keys.recover({i: both[kind] for i, both in held.items()}, 11) for kind in (0, 1))
    pairs = {other: room.pair_key(VICTIM, other, pair) for other in room.clients if other != VICTIM}
    assert (room.stripped(VICTIM, vector, seed, pairs) == room.codes[VICTIM]).all()
    assert not plan.protects(11, 2)
    assert plan.protects(9, 2)
    assert not plan.protects(9, 3)
    with pytest.raises(InvalidParameter):
        keys.recover({i: both[1] for i, both in list(held.items())[:10]}, 11)


def test_an_owner_bounds_the_colluders():
    owner = Policy(
        epsilon=1.0,
        delta=1e-5,
        adjacency="zero-out",
        mechanisms=("imvu",),
        largest_clip=1.0,
        releases=5,
        releases_per_day=5,
        ledger="/a",
        counter="/b",
        trust=["secure-aggregation"],
        min_honest_clients=810,
        local_epsilon=10.0,
        most_colluders=50,
    )
    owner.check_sum(SumPlan(1000, 950, 5, b"r"))
    owner.check_sum(SumPlan(1000, 860, 5, b"r"))
    for change in ({"most_colluders": 51}, {"min_honest_clients": 811}):
        with pytest.raises(NotAllowed, match="so few colluding clients could unmask"):
            evolve(owner, **change).check_sum(SumPlan(1000, 860, 5, b"r"))
