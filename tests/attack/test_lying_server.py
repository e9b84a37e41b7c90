"""A server that lies, against clients with identities: every way it tries ends in a refusal, or in
the exact sum.

Idea     the server of `Room` is the attacker: it has the wire, chooses whom it tells what, invents
         clients, and replays what it has seen. What clients give up is collected, and nobody's two
         secrets, and no sum of fewer than the threshold, may come of it. The attack of different
         lists is also played against honest-but-curious sums, where it works: so it is an attack,
         and the signatures are what stops it.
"""

import numpy as np
import pytest
from attrs import evolve

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import Room, identity, plan_of
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.secagg import keys
from quietbit.secagg.client import SumClient, lists_digest, shares_digest
from quietbit.secagg.codec import CONFIRMED, MASKED
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import ProtocolError
from quietbit.secagg.server import SumServer
from refusals import refuses

VICTIMS = [
    pytest.param(victim, marks=() if victim in (1, 4, 6, 10) else pytest.mark.long)
    for victim in range(1, 11)
]
KINDS = ("pair_keys", "seeds")


def recovered(answers, number, kind, needed):
    """A secret of a client, where enough shares of it were given up."""
    given = {i: getattr(answer, kind) for i, answer in answers.items()}
    shares = {i: parts[number] for i, parts in given.items() if number in parts}
    return keys.recover(shares, needed) if len(shares) >= needed else None


def given_up(numbers, ask):
    """What clients answer; a refusal is no answer."""
    answers = {}
    for i in numbers:
        try:
            answers[i] = ask(i)
        except QuietbitError:
            continue
    return answers


def split(clients, threshold, victim):
    """Lists for each client, as long as they must be, that leave the victim's partners out as
    often as possible.
    """
    others = [i for i in range(1, clients + 1) if i != victim]
    partners, rest = others[: threshold - 1], others[threshold - 1 :]
    lists = {victim: {victim, *partners}}
    for place, i in enumerate(rest):
        turned = partners[place:] + partners[:place]
        lists[i] = {victim, *rest, *turned[: threshold - 1 - len(rest)]}
    for i in partners:
        fill = [other for other in partners if other != i][: threshold - 2 - len(rest)]
        lists[i] = {i, victim, *rest, *fill}
    return set(partners), lists


def told(room, victim, partners):
    """All vectors, the victim's under a smaller list of partners than everybody else's."""
    return {i: room.mask(i, {i, *partners} if i == victim else room.u1) for i in room.clients}


@pytest.mark.parametrize("victim", VICTIMS)
def test_different_lists_work_where_the_server_is_believed(victim):
    """Ten clients, t = 6, genuine keys, no colluders: the victim's codes are read in every case."""
    room = Room(plan_of(10, 6, active=False)).dealt()
    partners, lists = split(10, 6, victim)
    vectors = told(room, victim, partners)
    answers = {i: room.clients[i].unmask(lists[i], {}, {}) for i in room.clients}
    pairs = {
        other: room.pair_key(other, victim, recovered(answers, other, "pair_keys", 6))
        for other in partners
    }
    codes = room.stripped(victim, vectors[victim], recovered(answers, victim, "seeds", 6), pairs)
    assert (codes == room.codes[victim]).all()


@pytest.mark.parametrize("victim", VICTIMS)
def test_different_lists_of_survivors_and_of_dealers_are_refused(victim):
    room = Room(plan_of(10, 7)).dealt()
    partners, lists = split(10, 7, victim)
    vectors = told(room, victim, partners)
    signed = given_up(room.clients, lambda i: room.clients[i].confirm(lists[i]))

    def unmask(i):
        proof = {j: signed[j] for j in signed if j in lists[i]}
        return room.clients[i].unmask(lists[i], proof, room.evidence(vectors))

    assert given_up(room.clients, unmask) == {}
    with pytest.raises(ProtocolError, match=f"signature of client {victim}"):
        room.server.receive(victim, vectors[victim])


@pytest.mark.parametrize("case", range(8))
def test_two_lists_never_both_have_enough_signatures(case):
    """The server splits ten clients into two camps in random ways, each with its own list of
    survivors, and shows every client its own list first and then the other.
    """
    rng = np.random.default_rng([11, case])
    room = Room(plan_of(10, 7)).dealt()
    masked = room.evidence({i: room.mask(i) for i in room.clients})
    everybody = set(range(1, 11))
    gone = [rng.choice(10, 1 + case % 3, replace=False) + 1 for _ in range(2)]
    lists = [everybody - set(left.tolist()) for left in gone]
    camp = {i: int(rng.random() < (0.0, 0.1, 0.3, 0.5)[case % 4]) for i in room.clients}
    signed = given_up(room.clients, lambda i: room.clients[i].confirm(lists[camp[i]]))

    def unmask(i, side):
        proof = {j: one for j, one in signed.items() if camp[j] == side and j in lists[side]}
        return room.clients[i].unmask(lists[side], proof, masked)

    own = given_up(room.clients, lambda i: unmask(i, camp[i]))
    other = given_up(room.clients, lambda i: unmask(i, 1 - camp[i]))
    answered = {camp[i] for i in own} | {1 - camp[i] for i in other}
    assert len(answered) < 2 or lists[0] == lists[1]
    for number in room.clients:
        assert None in [recovered(own | other, number, kind, 7) for kind in KINDS]
    if case % 4 == 0:
        assert len(own) == len(lists[0])  # a single camp is an honest sum


def test_a_signature_for_one_list_is_none_for_another():
    room = Room(plan_of(5, 4)).confirmed()
    client, masked = room.clients[1], room.server.masked(1)
    with pytest.raises(ProtocolError, match="confirm is not the next"):
        client.confirm({1, 2, 3, 4})
    few = dict(list(room.proof.items())[:3])
    digest = lists_digest(room.plan, room.server.description, room.u1, room.u2)
    stranger = Identity.new().sign(CONFIRMED, digest)
    missing = {i: one for i, one in masked.items() if i != 3}
    other = shares_digest(room.plan, room.server.description, {1, 3, 4, 5})
    forged = {**missing, 3: identity(3).sign(MASKED, other)}
    for u2, proof, evidence, says in (
        ({1, 2, 3, 4}, room.proof, masked, "not the one that this client has signed"),
        (room.u2, few, masked, "Only 3 clients confirmed"),
        (room.u2, {}, masked, "Only 0 clients"),
        (room.u2, {**few, 5: few[1]}, masked, "signature of client 5"),
        (room.u2, {**few, 5: stranger}, masked, "signature of client 5"),
        (room.u2, {**few, 9: stranger}, masked, "clients that are not on it"),
        (room.u2, room.proof, missing, "Client 3's signature of who dealt shares is missing"),
        (room.u2, room.proof, forged, "signature of client 3"),
    ):
        with pytest.raises(ProtocolError, match=says):
            client.unmask(u2, proof, evidence)
    total = room.finish(room.answers()).total  # and then it is exact
    assert (total == room.plain(range(1, 6))).all()


def crooked_advertisements(room):
    """Client 3's advertisement in other ways, some signed by somebody else."""
    victim = room.roster[3]
    last = victim.masking[31]
    keys_of_nobody = [
        bytes(32),
        b"\1" + bytes(31),
        (2**255 - 20).to_bytes(32, "little"),
        (2**255 - 19).to_bytes(32, "little"),
        victim.masking[:31] + bytes([last ^ 0x80]),
        victim.masking[:31],
        victim.masking + b"\0",
    ]
    sybil = SumClient(plan_of(5, 4, active=False), 3).advertise()
    digest = sybil.digest(room.plan, 3)
    earlier = Room(plan_of(5, 4, name=b"earlier")).advertised()
    return [
        *(evolve(victim, masking=key) for key in keys_of_nobody),
        *(evolve(victim, sealing=key) for key in keys_of_nobody),
        evolve(victim, seed=bytes(32)),
        evolve(victim, signature=bytes(64)),
        evolve(victim, signature=b""),
        earlier.published[3],  # a replay of another round
        room.published[4],  # another member's
        sybil,
        evolve(sybil, signature=Identity.new().sign(b"advertisement", digest)),  # the server's own
    ]


def test_forged_replayed_and_crooked_advertisements():
    """Every field of another's advertisement changed; those of other rounds, runs and members;
    keys nobody can use.
    """
    room = Room(plan_of(5, 4)).advertised()
    mine, roster = room.clients[1], room.roster
    for one in crooked_advertisements(room):
        with pytest.raises(QuietbitError):
            mine.share({**roster, 3: one})
    of_another_round = Room(plan_of(5, 4, name=b"earlier")).advertised().published[1]
    for lie, says in (
        ({**roster, 6: roster[3]}, "unknown clients"),
        ({**roster, 1: of_another_round}, "lacks this one"),
        ({i: roster[i] for i in (2, 3, 4, 5)}, "lacks this one"),
        ({i: roster[i] for i in (1, 2, 5)}, "Only 3 clients published keys"),
        ({1: roster[1]}, "Only 1 clients published keys"),
    ):
        with pytest.raises(ProtocolError, match=says):
            mine.share(lie)
    assert set(mine.share(roster)) == {2, 3, 4, 5}  # still there for the genuine ones


@pytest.mark.parametrize("key", [bytes(32), (2**255 - 18).to_bytes(32, "little"), b"\xff" * 32])
def test_a_signed_key_of_small_order_is_refused_all_the_same(key):
    """A member itself sends one: its signature is genuine, its key is not usable."""
    room = Room(plan_of(4, 3)).advertised()
    crooked = evolve(room.published[2], masking=key, signature=b"")
    signature = identity(2).sign(b"advertisement", crooked.digest(room.plan, 2))
    crooked = evolve(crooked, signature=signature)
    with pytest.raises(InvalidParameter, match="public key"):
        room.clients[1].share({**room.roster, 2: crooked})
    with pytest.raises(InvalidParameter, match="public key"):
        SumServer(room.plan).take_keys(2, crooked.to_bytes())


def test_shares_of_another_round_or_run_are_refused():
    now, other = Room(plan_of(4, 3)).dealt(), Room(plan_of(4, 3, name=b"other")).dealt()
    wider = Room(plan_of(4, 3, dimension=12)).dealt()
    for inbox in (other.inboxes[1], wider.inboxes[1], {**now.inboxes[1], 2: other.inboxes[1][2]}):
        with pytest.raises(ProtocolError, match="not genuine"):
            now.clients[1].mask(now.codes[1], now.u1, inbox)


STEPS = ("advertised", "dealt", "masked", "confirmed")


@pytest.mark.parametrize("done", range(6))
def test_steps_out_of_order_are_refused(done):
    """A client that has done so many steps is asked for every other one."""
    mirror = Room(plan_of(3, 3)).confirmed()  # has what the room may lack
    room = Room(plan_of(3, 3))
    room.roster, room.u1, room.inboxes = mirror.roster, mirror.u1, mirror.inboxes
    if done:
        getattr(room, STEPS[min(done, 4) - 1])()
    if done == 5:
        room.answers()
    client = room.clients[1]
    asks = [
        client.advertise,
        lambda: client.share(room.roster),
        lambda: room.mask(1),
        lambda: client.confirm({1, 2, 3}),
        lambda: client.unmask({1, 2, 3}, mirror.proof, {}),
    ]
    for number, ask in enumerate(asks):
        if number != done:
            with pytest.raises(ProtocolError, match="is not the next"):
                ask()


@pytest.mark.parametrize(("clients", "threshold"), [(7, 5), (10, 8), (10, 7)])
def test_sybils_up_to_the_threshold_learn_nothing_of_the_others(clients, threshold):
    """C = 2 t - n - 1 members collude with a server that lies: what they hold and are given is
    too little. Each of two camps is told that the others left; colluders sign whatever is wanted.
    """
    plan = plan_of(clients, threshold)
    room = Room(plan).dealt()
    masked = room.evidence({i: room.mask(i) for i in room.clients})
    bad = set(range(1, plan.most_colluders + 1))
    honest = sorted(set(room.clients) - bad)
    half = len(honest) // 2
    answers = []
    for camp in (honest[:half], honest[half:]):
        left = [i for i in honest if i not in camp][: clients - threshold]
        u2 = set(room.clients) - set(left)
        digest = lists_digest(plan, room.server.description, room.u1, u2)
        proof = {i: identity(i).sign(CONFIRMED, digest) for i in bad}
        for i in camp:
            proof[i] = room.clients[i].confirm(u2)

        def unmask(i, u2=u2, proof=proof):
            return room.clients[i].unmask(u2, proof, masked)

        answers += given_up(camp, unmask).items()
    # Colluders hold and give up both shares of everybody.
    for number in honest:
        holders = []
        for kind in KINDS:
            told_by = {i for i, answer in answers if number in getattr(answer, kind)}
            holders.append(len(bad | told_by))
        assert min(holders) < threshold


def test_a_plan_with_too_few_members_or_the_wrong_one_in_one_s_place_is_refused():
    with pytest.raises(InvalidParameter, match="threshold"):
        plan_of(10, 6)  # two thirds are not enough
    with refuses("identity"):
        SumClient(plan_of(5, 4), 1, identity(2))
    with pytest.raises(InvalidParameter, match="identity"):
        SumClient(plan_of(5, 4), 1)
    with pytest.raises(InvalidParameter, match="identity"):
        SumClient(plan_of(5, 4, active=False), 1, identity(1))
    with pytest.raises(ProtocolError, match="confirms lists"):
        Room(plan_of(5, 4, active=False)).masked().clients[1].confirm({1, 2, 3, 4, 5})
