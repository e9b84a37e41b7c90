"""Masked sums with neighbours of the clients' choice: exact, or refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from attrs import evolve
from scipy.stats import binom, hypergeom

pytest.importorskip("cryptography", reason="needs the all extra")

from quietbit.errors import InvalidParameter
from quietbit.secagg.exposure import neighbours_for
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.secagg.server import SumServer, masked_sum
from unit.secagg.kit import Room, codes_for, identity, plan_of


def members(count: int) -> tuple[bytes, ...]:
    return tuple(number.to_bytes(32, "big") for number in range(count))


@pytest.mark.parametrize(("clients", "neighbours"), [(5, 2), (7, 6), (50, 10)])
def test_a_choice_is_of_so_many_others(clients: int, neighbours: int) -> None:
    plan = plan_of(clients, clients // 2 + 1, active=False, near=(neighbours, neighbours))
    for number in range(1, clients + 1):
        chosen = plan.chosen(number, bytes([number]) * 16)
        assert len(chosen) == neighbours
        assert number not in chosen
        assert chosen <= set(range(1, clients + 1))
    assert plan.chosen(1, bytes(16)) == plan.chosen(1, bytes(16))
    assert SumPlan(clients, clients, 1, b"r").chosen(2, b"") == set(range(1, clients + 1)) - {2}


def test_choices_are_uniform_and_the_test_can_fail() -> None:
    """Every other client equally often, by exact binomial bounds; false alarms: 1e-9 in all."""
    plan, draws = plan_of(20, 11, active=False, near=(5, 4)), 4000
    rng, counts = np.random.default_rng(2), np.zeros(21, dtype=int)
    for _ in range(draws):
        counts[sorted(plan.chosen(7, rng.bytes(16)))] += 1
    assert counts[0] == counts[7] == 0

    def fine(found: np.ndarray) -> bool:
        tails = np.minimum(binom.cdf(found, draws, 5 / 19), binom.sf(found - 1, draws, 5 / 19))
        return bool((2 * 19 * tails > 1e-9).all())

    others = np.delete(counts, [0, 7])
    assert fine(others)
    others[3] += 300  # a place that is chosen a little too often
    assert not fine(others)


@pytest.mark.parametrize("active", [False, True])
def test_exact_for_dropout_patterns_or_closed(active: bool) -> None:
    """Eight clients with five neighbours each; each stays, or leaves before one of two steps."""
    plan = plan_of(8, 6, active=active, near=(5, 4))
    codes, people = codes_for(plan), {i: identity(i) for i in range(1, 9)} if active else None
    done = closed = 0
    rng = np.random.default_rng(4)
    patterns = [pattern for pattern in product(range(3), repeat=8) if pattern.count(2) >= 5]
    for place in rng.choice(len(patterns), 25, replace=False):
        pattern = patterns[place]
        gone = {
            f"gone_before_{name}": [i + 1 for i, stage in enumerate(pattern) if stage == s]
            for s, name in enumerate(("masking", "unmasking"))
        }
        try:
            found = masked_sum(plan, codes, identities=people, **gone)
        except ProtocolError:
            closed += 1  # fewer than t, or fewer than four holders of some secret
            continue
        arrived = [i + 1 for i, stage in enumerate(pattern) if stage >= 1]
        assert pattern.count(2) >= 6
        assert found.clients == tuple(arrived)
        assert (found.total == sum(codes[i] for i in arrived)).all()
        done += 1
    print(f"neighbours, active {active}: {done} exact, {closed} closed")
    assert done > 2
    assert closed > 2


def test_forty_clients_and_what_each_sends() -> None:
    plan = plan_of(40, 30, near=(10, 6))
    room = Room(plan).confirmed([i for i in range(1, 41) if i not in (1, 20, 21)])
    answers = room.answers()
    del answers[33]
    assert (room.server.finish(answers).total == room.plain(room.u2)).all()
    sizes = []
    for i in sorted(answers):
        signatures = 64 + 64
        dealt = sum(map(len, room.parts[i].values()))
        shares = 16 * (len(answers[i].seeds) + len(answers[i].pair_keys))
        sizes.append(
            len(room.published[i].to_bytes()) + dealt + plan.payload_size + signatures + shares
        )
        assert set(room.parts[i]) == plan.chosen(i, room.published[i].choice(plan, i))
    # How many chose a client varies; their mean is exact where everybody stays.
    assert abs(np.mean(sizes) - plan.uplink_size) < 32
    assert min(sizes) < plan.uplink_size < max(sizes)


def test_a_client_gives_up_one_secret_of_those_who_chose_it_and_none_of_others() -> None:
    room = Room(plan_of(8, 6, near=(4, 3))).confirmed([1, 2, 3, 4, 5, 6, 7])
    chose = {
        i
        for i in range(1, 9)
        if i == 1 or 1 in room.plan.chosen(i, room.published[i].choice(room.plan, i))
    }
    answer = room.clients[1].unmask(room.u2, room.proof, room.server.masked(1))
    assert set(answer.seeds) == chose - {8}
    assert set(answer.pair_keys) == chose & {8}
    other = Room(plan_of(30, 21, near=(2, 2))).advertised()
    everybody = {i: one for i, one in other.published.items() if i != 1}
    with pytest.raises(ProtocolError, match="neighbours"):
        other.clients[1].share(evolve(other.near[1], near=everybody))


def test_a_thousand_clients_send_little() -> None:
    found = neighbours_for(1000, 50, 50)
    assert found is not None
    plan = SumPlan(1000, 950, 39_700, b"r", 1, *found, members(1000), b"m")
    # Everything a client sends, keys and shares included, is less than a third of 32-bit floats.
    assert plan.uplink_size < 4 * 39_700 / 3
    alone = SumPlan(1000, 950, 39_700, b"r", members=members(1000), terms=b"m")
    assert alone.uplink_size > 2 * plan.uplink_size
    assert alone.exposure_upper(50, 900) == 0.0
    assert alone.exposure_upper(50, 901) == 1.0
    assert SumPlan(1000, 950, 1024, b"r", 1, *found, members(1000), b"m").uplink_size < 5000


def test_refusals() -> None:
    for given in ((2, None), (None, 2), (6, 7), (4, 1), (4, 6), (1, 2)):
        with pytest.raises(InvalidParameter):
            SumPlan(6, 5, 1, b"r", 1, *given)
    room = Room(plan_of(6, 5, near=(3, 3))).advertised()
    parts = {i: client.share(room.near[i]) for i, client in room.clients.items()}
    parts[2].popitem()
    inboxes = room.server.deal(parts)
    assert set(inboxes) == {1, 3, 4, 5, 6}
    assert "dealt" in room.server.liars[2]
    other = SumServer(room.plan)
    other.advertise(room.published)
    with pytest.raises(ProtocolError, match="Only 4 clients shared"):
        other.deal({i: parts[i] for i in (1, 3, 4, 5)})


@pytest.mark.parametrize(
    ("clients", "colluders", "gone"),
    [(200, 10, 20), pytest.param(500, 20, 100, marks=pytest.mark.long)],
)
def test_failures_count_those_who_left_and_hold_no_share_of_their_own(
    clients: int, colluders: int, gone: int
) -> None:
    """By scipy's hypergeometric law; only neighbours recover the pair key of one that left."""
    found = neighbours_for(clients, colluders, gone)
    assert found is not None
    neighbours, needed = found
    stay = hypergeom.sf(neighbours + 1 - needed, clients - 1, gone, neighbours)
    left = hypergeom.sf(neighbours - needed, clients - 1, gone - 1, neighbours)
    assert (clients - gone) * stay + gone * left <= 1e-3
