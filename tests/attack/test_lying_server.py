"""A server that lies, against clients with identities: every way it tries ends in a refusal, or in
the exact sum.

Idea     the server of `Room` is the attacker: it has the wire, chooses whom it tells what, invents
         clients, and replays what it has seen. What clients give up is collected, and nobody's two
         secrets, and no sum of fewer than the threshold, may come of it. The attack of different
         lists is also played against honest-but-curious sums, where it works: so it is an attack,
         and the signatures are what stops it. Counts of cases are printed.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import Room, identity, plan_of
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.secagg import keys
from quietbit.secagg.client import (
    SumClient,
    lists_digest,
    masking_key,
    pair_mask_key,
    self_mask_key,
    shares_digest,
)
from quietbit.secagg.codec import CONFIRMED, MASKED
from quietbit.secagg.identity import Identity
from quietbit.secagg.plan import ProtocolError
from quietbit.secagg.server import SumServer
from refusals import refuses


def recovered(answers, number, kind, needed):
    """A secret of a client, where enough shares of it were given up."""
    shares = {
        i: getattr(answer, kind)[number]
        for i, answer in answers.items()
        if number in getattr(answer, kind)
    }
    return keys.recover(shares, needed) if len(shares) >= needed else None


def split(clients, threshold, victim):
    """Lists for each client, as long as they must be, that leave the victim's partners out as
    often as possible.
    """
    partners = [i for i in range(1, clients + 1) if i != victim][: threshold - 1]
    rest = [i for i in range(1, clients + 1) if i != victim and i not in partners]
    lists = {victim: {victim, *partners}}
    for place, i in enumerate(rest):
        fill = [
            partners[(place + step) % len(partners)] for step in range(threshold - 1 - len(rest))
        ]
        lists[i] = {victim, *rest, *fill}
    for i in partners:
        fill = [other for other in partners if other != i][: threshold - 2 - len(rest)]
        lists[i] = {i, victim, *rest, *fill}
    return set(partners), lists


def told(room, victim, partners):
    """All vectors, the victim's under a smaller list of partners than everybody else's."""
    vectors = {}
    for i, client in room.clients.items():
        u1 = {victim, *partners} if i == victim else room.u1
        dealt = {dealer: data for dealer, data in room.inboxes[i].items() if dealer in u1}
        vectors[i] = client.mask(room.codes[i], u1, dealt)
    return vectors


def test_different_lists_work_where_the_server_is_believed():
    """Ten clients, t = 6, genuine keys, no colluders: the victim's codes are read in every case."""
    cases = 0
    for victim in (1, 4, 6, 10):
        room = Room(plan_of(10, 6, active=False)).dealt()
        partners, lists = split(10, 6, victim)
        vectors = told(room, victim, partners)
        answers = {i: room.clients[i].unmask(lists[i], {}, {}) for i in room.clients}
        plan = room.plan
        seed = recovered(answers, victim, "seeds", 6)
        total = plan.unpack(victim, vectors[victim]).copy()
        total -= keys.expand(self_mask_key(room.server.description, victim, seed), plan.width)
        for other in partners:
            private = masking_key(plan, other, recovered(answers, other, "pair_keys", 6))
            own, theirs = room.published[other].masking, room.published[victim].masking
            mask = keys.expand(
                pair_mask_key(room.server.description, other, victim, private, own, theirs),
                plan.width,
            )
            total = total - mask if victim < other else total + mask
        assert (plan.reduce(total)[: plan.dimension] == room.codes[victim]).all()
        cases += 1
    print(f"different lists, honest but curious: {cases} victims of {cases} unmasked")


def given_up(room, ask):
    """What clients answer; a refusal is no answer."""
    answers = {}
    for i in room.clients:
        try:
            answers[i] = ask(i)
        except QuietbitError:
            continue
    return answers


def test_different_lists_of_survivors_and_of_dealers_are_refused():
    cases = 0
    for victim in (1, 4, 6, 10):
        room = Room(plan_of(10, 7)).dealt()
        partners, lists = split(10, 7, victim)
        vectors = told(room, victim, partners)
        signed = given_up(room, lambda i, room=room, lists=lists: room.clients[i].confirm(lists[i]))
        masked = {i: vector[room.plan.payload_size :] for i, vector in vectors.items()}
        answers = given_up(
            room,
            lambda i, room=room, lists=lists, signed=signed, masked=masked: room.clients[i].unmask(
                lists[i], {j: signed[j] for j in signed if j in lists[i]}, masked
            ),
        )
        assert not answers
        with pytest.raises(ProtocolError, match=f"signature of client {victim}"):
            room.server.receive(victim, vectors[victim])
        cases += len(room.clients)
    print(f"different lists, active: {cases} requests, 0 answered")


def test_two_lists_never_both_have_enough_signatures():
    """The server splits ten clients into two camps in random ways, each with its own list of
    survivors.
    """
    rng, cases, answered = np.random.default_rng(11), 0, 0
    for case in range(8):
        room = Room(plan_of(10, 7)).dealt()
        vectors = {
            i: client.mask(room.codes[i], room.u1, room.inboxes[i])
            for i, client in room.clients.items()
        }
        masked = {i: vector[room.plan.payload_size :] for i, vector in vectors.items()}
        gone = [
            set(rng.choice(np.arange(1, 11), 1 + case % 3, replace=False).tolist())
            for _ in range(2)
        ]
        lists = [set(range(1, 11)) - left for left in gone]
        camp = {i: int(rng.random() < (0.0, 0.1, 0.3, 0.5)[case % 4]) for i in room.clients}
        signed = given_up(room, lambda i, r=room, c=camp, o=lists: r.clients[i].confirm(o[c[i]]))
        answers = [{}, {}]
        for i in room.clients:
            for side in (camp[i], 1 - camp[i]):  # its own list first, and then the other
                proof = {
                    j: signature
                    for j, signature in signed.items()
                    if camp[j] == side and j in lists[side]
                }
                cases += 1
                try:
                    answers[side][i] = room.clients[i].unmask(lists[side], proof, masked)
                    answered += 1
                except ProtocolError:
                    continue
        assert not (answers[0] and answers[1]) or lists[0] == lists[1]
        for number in room.clients:
            both = [
                recovered({**answers[0], **answers[1]}, number, kind, 7)
                for kind in ("seeds", "pair_keys")
            ]
            assert None in both
    print(f"two camps: {cases} requests, {answered} answered, never for two lists")
    assert 0 < answered < cases


def test_a_signature_for_one_list_is_none_for_another():
    room = Room(plan_of(5, 4)).confirmed()
    with pytest.raises(ProtocolError, match="not the one that this client has signed"):
        room.clients[1].unmask({1, 2, 3, 4}, room.proof, room.server.masked(1))
    with pytest.raises(ProtocolError, match="confirm is not the next"):
        room.clients[1].confirm({1, 2, 3, 4})
    few = dict(list(room.proof.items())[:3])
    padded = {**few, 5: few[1]}
    for proof, says in (
        (few, "Only 3 clients confirmed"),
        (padded, "signature of client 5"),
        ({}, "Only 0 clients"),
    ):
        with pytest.raises(ProtocolError, match=says):
            room.clients[1].unmask(room.u2, proof, room.server.masked(1))
    stranger = Identity.new().sign(
        CONFIRMED, lists_digest(room.plan, room.server.description, room.u1, room.u2)
    )
    for proof in ({**few, 9: stranger}, {**few, 5: stranger}):
        with pytest.raises(ProtocolError):
            room.clients[1].unmask(room.u2, proof, room.server.masked(1))
    missing = {i: one for i, one in room.server.masked(1).items() if i != 3}
    with pytest.raises(ProtocolError, match="Client 3's signature of who dealt shares is missing"):
        room.clients[1].unmask(room.u2, room.proof, missing)
    other = identity(3).sign(
        MASKED, shares_digest(room.plan, room.server.description, {1, 3, 4, 5})
    )
    with pytest.raises(ProtocolError, match="signature of client 3"):
        room.clients[1].unmask(room.u2, room.proof, {**missing, 3: other})
    assert (
        room.finish(room.answers()).total == room.plain(range(1, 6))
    ).all()  # and then it is exact


def test_forged_replayed_and_crooked_advertisements():
    """Every field of another's advertisement changed; those of other rounds, runs and members;
    keys nobody can use.
    """
    room, before = (
        Room(plan_of(5, 4)).advertised(),
        Room(plan_of(5, 4, name=b"earlier")).advertised(),
    )
    mine, victim = room.clients[1], room.roster[3]
    small = [
        bytes(32),
        b"\1" + bytes(31),
        (2**255 - 20).to_bytes(32, "little"),
        (2**255 - 19).to_bytes(32, "little"),
    ]
    crooked = [
        victim.masking[:31] + bytes([victim.masking[31] ^ 0x80]),
        victim.masking[:31],
        victim.masking + b"\0",
    ]
    own = Identity.new()
    sybil = SumClient(plan_of(5, 4, active=False), 3).advertise()
    signed = evolve(sybil, signature=own.sign(b"advertisement", sybil.digest(room.plan, 3)))
    bad = [
        *(evolve(victim, masking=key) for key in (*small, *crooked)),
        *(evolve(victim, sealing=key) for key in (*small, *crooked)),
        evolve(victim, seed=bytes(32)),
        evolve(victim, signature=bytes(64)),
        evolve(victim, signature=b""),
        before.published[3],  # a replay of another round
        room.published[4],  # another member's
        sybil,
        signed,  # the server's own key in the place of a member's
    ]
    roster = room.roster
    for one in bad:
        with pytest.raises(QuietbitError):
            mine.share({**roster, 3: one})
    for lie, says in (
        ({**roster, 6: victim}, "unknown clients"),
        ({**roster, 1: before.published[1]}, "lacks this one"),
        ({i: one for i, one in roster.items() if i != 1}, "lacks this one"),
        ({i: one for i, one in roster.items() if i not in (3, 4)}, "Only 3 clients published keys"),
        ({1: roster[1]}, "Only 1 clients published keys"),
    ):
        with pytest.raises(ProtocolError, match=says):
            mine.share(lie)
    assert set(mine.share(roster)) == {
        2,
        3,
        4,
        5,
    }  # and it is still there for the genuine ones
    print(f"advertisements: {len(bad) + 2} refused")


def test_a_signed_key_of_small_order_is_refused_all_the_same():
    """A member itself sends one: its signature is genuine, its key is not usable."""
    room = Room(plan_of(4, 3)).advertised()
    for key in (bytes(32), (2**255 - 18).to_bytes(32, "little"), b"\xff" * 32):
        crooked = evolve(room.published[2], masking=key, signature=b"")
        crooked = evolve(
            crooked, signature=identity(2).sign(b"advertisement", crooked.digest(room.plan, 2))
        )
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


def test_steps_out_of_order_are_refused():
    cases = 0
    for done in range(6):
        room = Room(plan_of(3, 3))
        mirror = Room(plan_of(3, 3)).confirmed()
        client, proof = room.clients[1], mirror.proof
        steps = {
            0: client.advertise,
            1: lambda c=client, r=room: c.share(r.roster),
            2: lambda c=client, r=room: c.mask(r.codes[1], r.u1, r.inboxes[1]),
            3: lambda c=client, r=room: c.confirm({1, 2, 3}),
            4: lambda c=client, r=room, p=proof: c.unmask({1, 2, 3}, p, {}),
        }
        if done:
            [None, room.advertised, room.dealt, room.masked, room.confirmed, room.confirmed][done]()
        if done == 5:
            room.answers()
        if done < 2:
            room.roster = mirror.roster
        if done < 3:
            room.u1, room.inboxes = mirror.u1, mirror.inboxes
        for number, step in steps.items():
            if number != done:
                with pytest.raises(ProtocolError, match="is not the next"):
                    step()
                cases += 1
    print(f"steps out of order: {cases} refused")


def test_sybils_up_to_the_threshold_learn_nothing_of_the_others():
    """C = 2 t - n - 1 members collude with a server that lies: what they hold and are given is
    too little.
    """
    for clients, threshold in ((7, 5), (10, 8), (10, 7)):
        plan = plan_of(clients, threshold)
        bad = set(range(1, plan.most_colluders + 1))
        room = Room(plan).dealt()
        vectors = {
            i: client.mask(room.codes[i], room.u1, room.inboxes[i])
            for i, client in room.clients.items()
        }
        masked = {i: vector[plan.payload_size :] for i, vector in vectors.items()}
        honest = [i for i in room.clients if i not in bad]
        held = {
            i: dict(room.clients[i]._received) for i in bad
        }  # colluders give up both shares of everybody
        half = len(honest) // 2
        camps = [set(honest[:half]) | bad, set(honest[half:]) | bad]
        answers = [{}, {}]
        for side, camp in enumerate(camps):
            # Each camp is told that the others left; colluders sign whatever is wanted.
            left = sorted(set(range(1, clients + 1)) - camp)[: clients - threshold]
            u2 = set(range(1, clients + 1)) - set(left)
            proof = {
                i: identity(i).sign(
                    CONFIRMED, lists_digest(plan, room.server.description, room.u1, u2)
                )
                for i in bad
            }
            for i in sorted(camp - bad):
                if i in u2:
                    proof[i] = room.clients[i].confirm(u2)
            for i in sorted(camp - bad):
                try:
                    answers[side][i] = room.clients[i].unmask(u2, proof, masked)
                except ProtocolError:
                    continue
        for number in honest:
            known = {"pair_keys": {}, "seeds": {}}
            for i, pairs in held.items():
                known["pair_keys"][i], known["seeds"][i] = pairs[number]
            for side in answers:
                for i, answer in side.items():
                    for kind in known:
                        if number in getattr(answer, kind):
                            known[kind][i] = getattr(answer, kind)[number]
            assert min(len(known["pair_keys"]), len(known["seeds"])) < threshold


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
