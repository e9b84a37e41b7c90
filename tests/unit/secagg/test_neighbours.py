"""Masked sums in which clients deal with their neighbours alone: exact, closed, and exposed as rarely as said."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import hypergeom

from quietbit._validate import InvalidParameter
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import ProtocolError, SumPlan, neighbours_for
from quietbit.secagg.server import SumServer, masked_sum

DIMENSION = 9


def codes(clients: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(3)
    return {i: rng.integers(0, 2, DIMENSION, dtype=np.uint32) for i in range(1, clients + 1)}


def near(plan: SumPlan, number: int) -> set[int]:
    return set(plan.holders(number, range(1, plan.clients + 1)))


@pytest.mark.parametrize(("clients", "neighbours"), [(5, 2), (6, 4), (7, 2), (7, 6), (50, 10)])
def test_neighbours_know_each_other(clients: int, neighbours: int) -> None:
    plan = SumPlan(clients, clients // 2 + 1, 1, b"r", 1, neighbours, neighbours // 2 + 1)
    for i in range(1, clients + 1):
        assert len(near(plan, i)) == neighbours + 1
        assert all(i in near(plan, j) for j in near(plan, i))
    assert plan.holders(1, [2, 3]) == sorted(near(plan, 1) & {2, 3})


def test_exact_for_every_dropout_pattern_or_closed() -> None:
    """Six clients in a circle of four neighbours each; every one stays or leaves before one of two steps."""
    plan, sent = SumPlan(6, 4, DIMENSION, b"round", 1, 4, 3), codes(6)
    done = closed = 0
    for pattern in product(range(3), repeat=6):
        gone = [[i + 1 for i, stage in enumerate(pattern) if stage == s] for s in range(2)]
        arrived = [i + 1 for i, stage in enumerate(pattern) if stage >= 1]
        helping = {i + 1 for i, stage in enumerate(pattern) if stage == 2}
        # Every client whose secret is needed must have three of its five holders left.
        fine = len(helping) >= 4 and all(len(near(plan, i) & helping) >= 3 for i in range(1, 7))
        arguments = {"gone_before_masking": gone[0], "gone_before_unmasking": gone[1]}
        if fine:
            found = masked_sum(plan, sent, **arguments)
            assert found.clients == tuple(arrived)
            assert (found.total == sum(sent[i] for i in arrived)).all()
            done += 1
        else:
            with pytest.raises(ProtocolError):
                masked_sum(plan, sent, **arguments)
            closed += 1
    assert done > 5
    assert closed > 5


def test_forty_clients_and_what_each_sends() -> None:
    plan, sent = SumPlan(40, 30, DIMENSION, b"round", 1, 10, 7), codes(40)
    found = masked_sum(plan, sent, gone_before_sharing=[7], gone_before_masking=[1, 20, 21], gone_before_unmasking=[33])
    assert (found.total == sum(sent[i] for i in found.clients)).all()
    assert len(found.clients) == 36
    client = SumClient(plan, 5)
    others = {i: SumClient(plan, i) for i in range(1, 41) if i != 5}
    published = {i: other.advertise() for i, other in others.items()} | {5: client.advertise()}
    sealed = client.share(published)
    assert set(sealed) == near(plan, 5) - {5}
    keys, shares = 64, sum(map(len, sealed.values()))
    assert plan.uplink_size == keys + shares + plan.payload_size + 33 * 11


def test_a_client_gives_up_one_secret_of_each_neighbour_and_none_of_others() -> None:
    plan, sent = SumPlan(8, 6, DIMENSION, b"round", 1, 4, 3), codes(8)
    clients = {i: SumClient(plan, i) for i in sent}
    server = SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    for i in (1, 2, 3, 4, 5, 6, 7):
        server.receive(i, clients[i].mask(sent[i], inboxes[i]))
    answer = clients[1].unmask(server.arrived())
    assert set(answer.seeds) == {1, 2, 3, 7}
    assert set(answer.pair_keys) == {8}
    with pytest.raises(ProtocolError, match="threshold"):
        clients[2].unmask({1, 2, 3, 4, 5})
    with pytest.raises(ProtocolError, match="unknown"):
        clients[3].unmask({1, 2, 3, 4, 5, 6, 99})


@pytest.mark.parametrize(("clients", "neighbours", "needed"), [(8, 2, 2), (9, 4, 3), (10, 2, 3)])
@pytest.mark.parametrize(("colluders", "gone"), [(2, 1), (3, 2), (0, 4)])
def test_exposure_dominates_all_placements(
    clients: int, neighbours: int, needed: int, colluders: int, gone: int
) -> None:
    plan = SumPlan(clients, clients // 2 + 1, 1, b"r", 1, neighbours, needed)
    exposed = count = 0
    for bad in combinations(range(1, clients + 1), colluders):
        for left in combinations([i for i in range(1, clients + 1) if i not in bad], gone):
            honest = [i for i in range(1, clients + 1) if i not in (*bad, *left)]
            overrun = any(len(near(plan, i) & set(bad)) >= needed for i in range(1, clients + 1) if i not in bad)
            count += 1
            exposed += overrun or not _connected(plan, honest)
    assert exposed / count <= plan.exposure_upper(colluders, gone)


def _connected(plan: SumPlan, honest: list[int]) -> bool:
    reached, todo = {honest[0]}, [honest[0]]
    while todo:
        for other in (near(plan, todo.pop()) & set(honest)) - reached:
            reached.add(other)
            todo.append(other)
    return len(reached) == len(honest)


def test_a_thousand_clients_need_few_neighbours() -> None:
    found = neighbours_for(1000, 50, 50)
    assert found == (22, 15)
    plan = SumPlan(1000, 900, 39_700, b"r", 1, *found)
    assert plan.exposure_upper(50, 50) <= 2.0**-40
    # Everything a client sends, keys and shares included, is less than a third of 32-bit floats.
    assert plan.uplink_size < 4 * 39_700 / 3
    assert SumPlan(1000, 900, 39_700, b"r").uplink_size > 4 * 39_700
    assert SumPlan(1000, 900, 39_700, b"r").exposure_upper(50, 50) == 0.0
    assert neighbours_for(3, 1, 1) is None


def test_refusals() -> None:
    for given in ((3, 2), (2, None), (None, 2), (6, 7), (4, 2), (4, 6)):
        with pytest.raises(InvalidParameter, match=r"neighbours|share_threshold"):
            SumPlan(6, 4, 1, b"r", 1, *given)


@pytest.mark.parametrize(("clients", "colluders", "gone"), [(200, 10, 20), (500, 20, 100)])
def test_failures_count_those_who_left_and_hold_no_share_of_their_own(clients: int, colluders: int, gone: int) -> None:
    """By scipy's hypergeometric law; a client that left has only its neighbours to recover its pair key from."""
    found = neighbours_for(clients, colluders, gone)
    assert found is not None
    neighbours, needed = found
    stay = hypergeom.sf(neighbours + 1 - needed, clients - 1, gone, neighbours)
    left = hypergeom.sf(neighbours - needed, clients - 1, gone - 1, neighbours)
    assert (clients - gone) * stay + gone * left <= 1e-3
