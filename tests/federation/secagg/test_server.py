"""Masked sums: exact whoever leaves, refused below the threshold, never silently wrong."""

import pickle
from itertools import combinations_with_replacement

import numpy as np
import pytest
from attrs import evolve

pytest.importorskip("cryptography", reason="needs the all extra")

from federation.secagg.kit import DIMENSION, Room, codes_for, identity, plan_of
from quietbit.errors import InvalidParameter
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import Unmasking, write_tables
from quietbit.secagg.keys import SHARE_SIZE
from quietbit.secagg.plan import DEALT_SIZE, ProtocolError
from quietbit.secagg.server import SumServer, simulate_secure_sum
from refusals import refuses


@pytest.mark.parametrize(
    ("clients", "threshold", "active"),
    [
        (2, 2, False),
        (3, 2, False),
        (4, 3, False),
        (3, 3, True),
        (4, 3, True),
        pytest.param(10, 7, True, marks=pytest.mark.long),
    ],
)
def test_exact_for_every_dropout_pattern_or_closed(clients, threshold, active):
    """Each client stays or leaves before a step: all patterns, up to the clients' order."""
    plan = plan_of(clients, threshold, active=active)
    codes = codes_for(plan)
    people = {i: identity(i) for i in codes} if active else None
    steps = ["sharing", "masking", *(["confirming"] if active else []), "unmasking"]
    done, closed, rng = 0, 0, np.random.default_rng(clients)
    for unordered in combinations_with_replacement(range(len(steps) + 1), clients):
        stages = dict(enumerate(rng.permutation(unordered).tolist(), 1))
        gone = {}
        for place, step in enumerate(steps):
            gone[f"gone_before_{step}"] = [i for i, stage in stages.items() if stage == place]
        sent = tuple(i for i, stage in stages.items() if stage >= 2)
        if list(stages.values()).count(len(steps)) >= threshold:
            found = simulate_secure_sum(plan, codes, identities=people, **gone)
            assert found.clients == sent
            assert (found.total == sum(codes[i] for i in sent)).all()
            done += 1
        else:
            with pytest.raises(ProtocolError, match="threshold"):
                simulate_secure_sum(plan, codes, identities=people, **gone)
            closed += 1
    assert min(done, closed) > 0


def test_twelve_clients_all_ones_fill_the_modulus():
    plan = plan_of(15, 9, active=False, dimension=40)  # the sum 15 is the largest of 4 bits
    codes = {i: np.ones(40, dtype=np.uint32) for i in range(1, 16)}
    assert (simulate_secure_sum(plan, codes).total == 15).all()
    found = simulate_secure_sum(
        plan, codes, gone_before_masking=[1, 7, 15], gone_before_unmasking=[2, 3, 9]
    )
    assert (found.total == 12).all()


@pytest.mark.parametrize("active", [False, True])
def test_a_client_gives_up_one_secret_of_each_and_answers_once(active):
    room = Room(plan_of(4, 3, active=active))
    room.confirmed([1, 2, 3]) if active else room.masked([1, 2, 3])
    told = (room.proof, room.server.masked(1)) if active else ({}, {})
    answer = room.clients[1].unmask(room.u2, *told)
    assert set(answer.seeds) == {1, 2, 3}
    assert set(answer.pair_keys) == {4}
    assert all(
        len(part) == SHARE_SIZE for part in (*answer.seeds.values(), *answer.pair_keys.values())
    )
    with pytest.raises(ProtocolError, match="not the next"):
        room.clients[1].unmask({1, 2, 3, 4}, *told)
    with pytest.raises(ProtocolError, match="threshold"):
        room.clients[2].unmask({1, 2}, *told)
    with pytest.raises(ProtocolError, match="lacks this one"):
        room.clients[3].unmask({1, 2, 4}, *told)
    with pytest.raises(ProtocolError, match="threshold"):
        room.finish({1: answer})
    with refuses("client", 1):
        room.server.receive(1, b"")


def test_nothing_secret_is_shown():
    room = Room(plan_of(4, 3))
    kept = room.clients[1].to_bytes()
    assert repr(room.clients[1]) == "SumClient(1)"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(room.clients[1])
    assert not kept.isascii()
    room.confirmed([1, 2, 3])
    answer = room.clients[1].unmask(room.u2, room.proof, room.server.masked(1))
    assert repr(answer) == "Unmasking(pair_keys of [4], seeds of [1, 2, 3])"


@pytest.mark.parametrize("active", [False, True])
def test_a_client_that_is_put_away_between_steps_goes_on_where_it_was(active):
    plan = plan_of(4, 3, active=active)
    room = Room(plan)

    def woken(number, kept, of=plan):
        return SumClient.from_bytes(of, kept, identity(number) if active else None)

    def again():
        kept = {i: one.to_bytes() for i, one in room.clients.items()}
        room.clients = {i: woken(i, data) for i, data in kept.items()}
        return kept

    room.dealt(again)
    with pytest.raises(ProtocolError, match="not the next"):
        room.clients[1].share(room.roster)
    before = again()
    for i in (1, 2, 3):
        room.server.receive(i, room.mask(i))
    after = again()
    for i in (1, 2, 3):
        assert len(after[i]) < len(before[i]) - 64  # the secrets are gone
    room.u2 = room.server.arrived()
    if active:
        room.confirm()
        again()
    found = room.finish(room.answers())
    assert (found.total == room.plain((1, 2, 3))).all()
    for bad in (b"\0", after[1][:-1], after[1][:40], b"\xff" * 80):
        with pytest.raises(ProtocolError, match="leaves the sum"):
            woken(1, bad)
    for other in (plan_of(4, 3, active=active, name=b"next"), plan_of(4, 4, active=active)):
        with pytest.raises(ProtocolError, match="plan"):
            woken(1, after[1], other)


def test_secrets_are_gone_with_the_vector():
    room = Room(plan_of(3, 3)).dealt()
    client = room.clients[1]
    held = [client._sealing, *client._secrets.values()]
    copies = [bytes(part) for part in held]
    room.server.receive(1, room.mask(1))
    assert all(not any(part) for part in held)  # overwritten, not only let go
    assert all(copy not in client.to_bytes() for copy in copies)


@pytest.mark.parametrize("liar", range(1, 6))
@pytest.mark.parametrize("answering", [4, 5])  # exactly t answers, or one more
def test_a_false_share_names_its_holder_and_the_sum_is_right_or_none(answering, liar):
    room = Room(plan_of(5, 4)).confirmed()
    answers = room.answers()
    if answering == 4:
        del answers[liar % 5 + 1]
    victim = (liar + 1) % 5 + 1
    seeds = {**answers[liar].seeds, victim: bytes(16)}
    answers[liar] = Unmasking(answers[liar].pair_keys, seeds)
    if answering == 5:
        assert (room.finish(answers).total == room.plain(range(1, 6))).all()
    else:
        says = f"client {liar}: .* share of client {victim}"
        with pytest.raises(ProtocolError, match=says):
            room.finish(answers)
    lie = f"it sent a share of client {victim}'s secret that it was not dealt"
    assert room.server.liars == {liar: lie}


@pytest.mark.parametrize("kind", ["seed", "key"])
def test_a_dealer_that_shares_another_secret_is_named(kind):
    room = Room(plan_of(5, 4))
    liar, secret = room.clients[2], (b"seed" if kind == "seed" else b"pair")
    liar._secrets[secret][:] = bytes(15) + b"\1"  # after it has advertised
    senders = [1, 2, 3, 4, 5] if kind == "seed" else [1, 3, 4, 5]
    room.confirmed(senders)
    with pytest.raises(ProtocolError, match="client 2"):
        room.finish(room.answers())
    assert set(room.server.liars) == {2}


def test_shares_that_are_not_those_committed_to_are_refused_by_their_holder():
    room = Room(plan_of(4, 3)).dealt()
    good = room.inboxes[1][3]
    for place in (0, 47, 48, 79):  # the seal, and both commitments
        bad = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(ProtocolError, match="client 3 dealt to client 1 is not"):
            room.clients[1].mask(room.codes[1], room.u1, {**room.inboxes[1], 3: bad})
    swapped = {**room.inboxes[1], 2: room.inboxes[1][3], 3: room.inboxes[1][2]}
    with pytest.raises(ProtocolError, match="not genuine"):
        room.clients[1].mask(room.codes[1], room.u1, swapped)
    for inbox in ({2: room.inboxes[1][2]}, {**room.inboxes[1], 1: good}, {}):
        with pytest.raises(ProtocolError, match="exactly"):
            room.clients[1].mask(room.codes[1], room.u1, inbox)
    room.server.receive(1, room.mask(1))


def test_a_vector_that_is_not_masked_as_it_must_be_makes_no_sum():
    room = Room(plan_of(4, 3)).dealt()
    for i in room.codes:
        vector = room.mask(i)
        if i == 2:
            values = room.plan.unpack(2, vector[: room.plan.payload_size])
            values = room.plan.reduce(values + np.arange(values.size, dtype=np.uint32))
            vector = room.plan.pack(2, values) + vector[room.plan.payload_size :]
        room.server.receive(i, vector)
    room.u2 = room.server.arrived()
    room.confirm()
    with pytest.raises(ProtocolError, match="guard of the sum"):
        room.finish(room.answers())


def test_advertisements_that_would_make_others_leave_are_refused_and_named():
    plan = plan_of(5, 4, active=False)
    server = SumServer(plan)
    published = {i: SumClient(plan, i).advertise() for i in range(1, 6)}
    for i in (1, 2, 3):
        server.take_keys(i, published[i].to_bytes())
    with pytest.raises(ProtocolError, match="Only 3 clients published keys"):
        server.roster()
    twice = evolve(published[4], sealing=published[4].masking)
    crooked = evolve(published[4], masking=bytes(32))
    for bad in (published[3], twice, evolve(published[4], masking=published[1].sealing), crooked):
        with pytest.raises(InvalidParameter, match="public key"):
            server.take_keys(4, bad.to_bytes())
    server.take_keys(4, published[4].to_bytes())
    assert set(server.roster()) == {1, 2, 3, 4}
    shares = {i: bytes(DEALT_SIZE) for i in (1, 2, 3, 4)}
    for dealt in ({i: shares[i] for i in (1, 2)}, shares, {**shares, 5: shares[1]}):
        with refuses("receivers of its shares"):
            server.take_shares(4, write_tables(plan, dealt))
    with refuses("client", 5):
        server.take_shares(5, write_tables(plan, shares))


def test_codes_out_of_range_are_refused_before_a_mask_is_made():
    room = Room(plan_of(3, 3)).dealt()
    for bad, name in (
        (np.full(DIMENSION, 2), "codes"),
        (np.full(DIMENSION, -1), "codes"),
        (np.zeros(DIMENSION + 1, int), "number of codes"),
        (np.full(DIMENSION, np.nan), "type of the codes"),
    ):
        with refuses(name):
            room.clients[1].mask(bad, room.u1, room.inboxes[1])
    room.server.receive(1, room.mask(1))
