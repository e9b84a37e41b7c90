"""Three attacks that once read single clients out of masked sums, played against the real protocol.

Idea     each attack is played twice: against the clients as they are, who refuse it before they
         give anything up; and against clients without the one check that stops it, where the
         victim's codes are read. So it is an attack, and the check is what stops it.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from attrs import evolve

pytest.importorskip("cryptography", reason="needs the all extra")

from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node.policy import Policy
from quietbit.node.refusal import NotAllowed
from quietbit.secagg import keys
from quietbit.secagg.client import SumClient, masking_key, pair_mask_key, self_mask_key
from quietbit.secagg.exposure import exposure_upper
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.secagg.server import SumServer, masked_sum
from unit.secagg.kit import Room, codes_for, identity, plan_of

VICTIM = 7


def clients_told(terms: dict[int, bytes], clients: int = 20) -> dict[int, SumClient]:
    plans = {i: plan_of(clients, clients, terms=terms[i]) for i in terms}
    return {i: SumClient(plans[i], i, identity(i)) for i in terms}


def test_a_server_cannot_give_the_others_a_mechanism_without_noise():
    """n = t = 20, no colluders, genuine lists: only the victim's codes are not known beforehand."""
    true, quiet = b"the mechanism of the run", b"one bit, P(1) = 2^-21"
    people = clients_told({i: true if i == VICTIM else quiet for i in range(1, 21)})
    server = SumServer(plan_of(20, 20, terms=quiet))
    with pytest.raises(ProtocolError, match="Only 19 clients published keys"):
        server.advertise({i: client.advertise() for i, client in people.items()})
    # A server that forwards everything all the same is told so by both sides.
    people = clients_told({i: true if i == VICTIM else quiet for i in range(1, 21)})
    room = Room(plan_of(20, 20, terms=quiet)).advertised()
    mine = people[VICTIM].advertise()
    for i, client in people.items():
        others = {j: mine if j == VICTIM else one for j, one in room.published.items() if j != i}
        choices = {**room.near[1].choices, VICTIM: mine.choice(people[VICTIM]._plan, VICTIM)}
        if i != VICTIM:
            client = room.clients[i]
        with pytest.raises(ProtocolError, match="signature of client"):
            client.share(evolve(room.near[i], near=others, choices=choices))


def test_without_the_mechanism_in_the_plan_the_victim_is_read():
    """The same, with terms that do not reach the context: the sum of twenty is the victim's
    codes.
    """
    plan = plan_of(20, 20, terms=b"whatever the server told each client")
    codes = {i: np.zeros(plan.dimension, dtype=np.uint32) for i in range(1, 21)}
    codes[VICTIM] = codes_for(plan)[VICTIM]
    people = {i: identity(i) for i in codes}
    assert (masked_sum(plan, codes, identities=people).total == codes[VICTIM]).all()


def hidden(room: Room, pair: set[int]) -> None:
    """Tell two clients of each other alone, and the others of everybody else, as far as they
    take it.
    """
    for i, roster in room.near.items():
        keep = {j: one for j, one in roster.near.items() if (j in pair) == (i in pair)}
        room.near[i] = evolve(roster, near=keep)


def test_edges_cannot_be_hidden_at_both_ends():
    """Twenty clients, k = 19, s = 2: such a plan is refused; and with any other a client knows
    whom it deals with.
    """
    for near in ((19, 2), (19, 18)):
        with pytest.raises(InvalidParameter, match="left out below 100 clients"):
            SumPlan(20, 20, 5, b"r", 1, *near)
    with pytest.raises(InvalidParameter, match="share_threshold"):
        plan_of(20, 20, near=(19, 2))
    pair, refused = {3, VICTIM}, 0
    room = Room(plan_of(20, 20, near=(19, 11))).advertised()
    hidden(room, pair)
    for i, client in room.clients.items():
        with pytest.raises(ProtocolError, match="neighbours"):
            client.share(room.near[i])
        refused += 1
    assert refused == 20


def test_without_that_check_a_sum_of_two_is_read():
    """Clients that believe the server on whom they deal with: the sum of the pair comes out,
    with no colluder.
    """

    def believed(client, roster):
        return frozenset(roster.near), frozenset(roster.near)

    pair = {3, VICTIM}
    with (
        patch("quietbit.secagg.exposure.least_share_threshold", lambda _: 2),
        patch("quietbit.secagg.plan.least_share_threshold", lambda _: 2),
    ):
        room = Room(plan_of(20, 20, near=(19, 2))).advertised()
    hidden(room, pair)
    with patch.object(SumClient, "_checked", believed):
        parts = {i: client.share(room.near[i]) for i, client in room.clients.items()}
    vectors = {}
    for i, client in room.clients.items():
        dealt = {j: parts[j][i] for j in room.near[i].near}
        vectors[i] = client.mask(room.codes[i], range(1, 21), dealt)
    u2, total = frozenset(range(1, 21)), np.zeros(room.plan.width, dtype=np.uint32)
    signed = {i: client.confirm(u2) for i, client in room.clients.items()}
    masked = {i: vector[room.plan.payload_size :] for i, vector in vectors.items()}
    answers = {i: room.clients[i].unmask(u2, signed, masked) for i in pair}
    for i in pair:
        seed = keys.recover({j: answers[j].seeds[i] for j in pair}, 2)
        total += room.plan.unpack(i, vectors[i][: room.plan.payload_size])
        total -= keys.expand(self_mask_key(room.server.description, i, seed), room.plan.width)
    assert (room.plan.reduce(total)[: room.plan.dimension] == room.plain(pair)).all()


def test_a_roster_that_hides_who_chose_the_victim_is_another_round():
    """Others' choices are in the open; false ones for one client make its shares useless, and
    the rest go on.
    """
    plan, number, only = plan_of(10, 9, near=(4, 3)), VICTIM, []
    mine, dealers = set(), set()
    while (
        not only or not mine & dealers
    ):  # until the victim's choice and those who chose it overlap in part
        room = Room(plan).advertised()
        roster = room.near[number]
        mine, dealers = plan.near(number, roster.choices)
        only = sorted(dealers - mine)
    rng, choices = np.random.default_rng(1), dict(roster.choices)
    for other in only:
        while number in plan.chosen(other, choices[other]):
            choices[other] = rng.bytes(16)
    lie = evolve(
        roster, choices=choices, near={i: one for i, one in roster.near.items() if i in mine}
    )
    parts = {
        i: client.share(lie if i == VICTIM else room.near[i]) for i, client in room.clients.items()
    }
    for holder in sorted(mine):
        dealers_of = plan.near(holder, roster.choices)[1]
        dealt = {i: parts[i][holder] for i in dealers_of}
        with pytest.raises(
            ProtocolError, match=f"client {VICTIM} dealt to client {holder} is not genuine"
        ):
            room.clients[holder].mask(room.codes[holder], range(1, 11), dealt)
    told = {i: parts[i][VICTIM] for i in mine & dealers}
    with pytest.raises(QuietbitError):
        room.clients[VICTIM].mask(room.codes[VICTIM], range(1, 11), told)


def test_colluders_that_hold_enough_shares_read_without_a_lie_and_are_counted():
    """n = t = 20, k = 19, s = 2: two colluders read the victim; its exposure is 1, and nobody
    accepts the plan.
    """
    with patch("quietbit.secagg.plan.least_share_threshold", lambda _: 2):
        plan = plan_of(20, 20, near=(19, 2))
    room = Room(plan).dealt()
    vectors = {
        i: client.mask(room.codes[i], room.u1, room.inboxes[i])
        for i, client in room.clients.items()
    }
    held = [room.clients[i]._received[VICTIM] for i in (1, 2)]
    pair, seed = (keys.recover({1: held[0][kind], 2: held[1][kind]}, 2) for kind in (0, 1))
    description, total = (
        room.server.description,
        plan.unpack(VICTIM, vectors[VICTIM][: plan.payload_size]),
    )
    total = total - keys.expand(self_mask_key(description, VICTIM, seed), plan.width)
    private, own = masking_key(plan, VICTIM, pair), room.published[VICTIM].masking
    for other in set(room.codes) - {VICTIM}:
        key = pair_mask_key(description, VICTIM, other, private, own, room.published[other].masking)
        mask = keys.expand(key, plan.width)
        total = total - mask if other > VICTIM else total + mask
    assert (plan.reduce(total)[: plan.dimension] == room.codes[VICTIM]).all()
    assert plan.exposure_upper(3, 17) == plan.exposure_upper(2, 17) == 1.0
    assert exposure_upper(1000, 950, 100, 6, 50, 810) == 1.0


def test_an_owner_bounds_the_exposure_and_the_graph():
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
    sparse = SumPlan(1000, 950, 5, b"r", 1, 25, 17)
    owner.check_sum(sparse)
    owner.check_sum(SumPlan(1000, 950, 5, b"r"))
    with pytest.raises(NotAllowed, match="deal with so few others"):
        evolve(owner, min_neighbours=26).check_sum(sparse)
    for plan in (SumPlan(1000, 950, 5, b"r", 1, 25, 14), SumPlan(1000, 950, 5, b"r", 1, 12, 8)):
        with pytest.raises(NotAllowed, match="so few colluding clients could unmask"):
            owner.check_sum(plan)
    with pytest.raises(NotAllowed, match="so few colluding clients could unmask"):
        evolve(owner, largest_exposure=1e-14).check_sum(sparse)
    with pytest.raises(InvalidParameter, match="largest_exposure"):
        evolve(owner, largest_exposure=0.5)
