from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from quietbit._validate import InvalidParameter
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import ProtocolError, SumPlan
from quietbit.secagg.server import SumServer, masked_sum
from quietbit.secagg.shamir import SHARE_SIZE

DIMENSION = 11


def bits(clients: int, dimension: int = DIMENSION) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(5)
    return {i: rng.integers(0, 2, dimension, dtype=np.uint32) for i in range(1, clients + 1)}


@pytest.mark.parametrize(("clients", "threshold"), [(2, 2), (3, 2), (4, 3)])
def test_exact_for_every_dropout_pattern_or_closed(clients: int, threshold: int) -> None:
    """Each client leaves before sharing, masking or unmasking, or stays: all 4^n patterns."""
    plan, codes = SumPlan(clients, threshold, DIMENSION, b"round"), bits(clients)
    done = 0
    for pattern in product(range(4), repeat=clients):
        gone = [[i + 1 for i, stage in enumerate(pattern) if stage == s] for s in range(3)]
        sent = [i + 1 for i, stage in enumerate(pattern) if stage >= 2]
        stayed = sum(stage == 3 for stage in pattern)
        arguments = {"gone_before_sharing": gone[0], "gone_before_masking": gone[1], "gone_before_unmasking": gone[2]}
        if stayed >= threshold:
            found = masked_sum(plan, codes, **arguments)
            assert found.clients == tuple(sent)
            assert (found.total == sum(codes[i] for i in sent)).all()
            done += 1
        else:
            with pytest.raises(ProtocolError, match="threshold"):
                masked_sum(plan, codes, **arguments)
    assert done > 0


def test_twelve_clients_all_ones_fill_the_modulus() -> None:
    plan = SumPlan(15, 9, 40, b"round")  # the sum 15 is the largest of 4 bits
    codes = {i: np.ones(40, dtype=np.uint32) for i in range(1, 16)}
    assert (masked_sum(plan, codes).total == 15).all()
    found = masked_sum(plan, codes, gone_before_masking=[1, 7, 15], gone_before_unmasking=[2, 3, 9])
    assert (found.total == 12).all()


def test_codes_of_two_bits_are_summed_exactly() -> None:
    plan = SumPlan(5, 3, DIMENSION, b"round", largest_code=3)  # sums up to 15: 4 bits
    rng = np.random.default_rng(6)
    codes = {i: rng.integers(0, 4, DIMENSION, dtype=np.uint32) for i in range(1, 6)}
    codes[1][:] = codes[2][:] = 3
    found = masked_sum(plan, codes, gone_before_masking=[4], gone_before_unmasking=[1])
    assert (found.total == sum(codes[i] for i in (1, 2, 3, 5))).all()
    with pytest.raises(InvalidParameter, match="whole numbers from 0 to 3"):
        masked_sum(plan, {**codes, 3: codes[3] + 4})


def test_a_client_gives_up_one_secret_of_each_and_answers_once() -> None:
    plan, codes = SumPlan(4, 3, DIMENSION, b"round"), bits(4)
    clients = {i: SumClient(plan, i) for i in codes}
    server = SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    for i in (1, 2, 3):
        server.receive(i, clients[i].mask(codes[i], inboxes[i]))
    answer = clients[1].unmask(server.arrived())
    assert set(answer.seeds) == {1, 2, 3}
    assert set(answer.pair_keys) == {4}
    assert not set(answer.seeds) & set(answer.pair_keys)
    assert all(len(part) == SHARE_SIZE for part in (*answer.seeds.values(), *answer.pair_keys.values()))
    with pytest.raises(ProtocolError, match="once and in order"):
        clients[1].unmask({1, 2, 3, 4})
    with pytest.raises(ProtocolError, match="threshold"):
        clients[2].unmask({1, 2})
    with pytest.raises(ProtocolError, match="lacks this one"):
        clients[3].unmask({1, 2, 4})
    with pytest.raises(ProtocolError, match="threshold"):
        server.finish({1: answer})
    with pytest.raises(InvalidParameter, match="not arrived yet"):
        server.receive(1, b"")
    assert repr(clients[1]) == "SumClient(1)"


def test_a_client_that_is_put_away_between_steps_goes_on_where_it_was() -> None:
    plan, codes = SumPlan(3, 2, DIMENSION, b"round"), bits(3)
    server = SumServer(plan)

    def again(client: SumClient) -> SumClient:
        return SumClient.from_bytes(plan, client.to_bytes())

    clients = {i: SumClient(plan, i) for i in codes}
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    clients = {i: again(client) for i, client in clients.items()}
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    clients = {i: again(client) for i, client in clients.items()}
    with pytest.raises(ProtocolError, match="once and in order"):
        again(clients[1]).share(published)
    for i in (1, 2):
        server.receive(i, clients[i].mask(codes[i], inboxes[i]))
    clients = {i: again(client) for i, client in clients.items()}
    found = server.finish({i: clients[i].unmask(server.arrived()) for i in (1, 2)})
    assert (found.total == codes[1] + codes[2]).all()
    assert clients[1].to_bytes().count(b'""') == 3  # the secrets are gone
    for bad in (b"", b"{}", b"[]", clients[1].to_bytes().replace(b'"step": 4', b'"step": 9')):
        with pytest.raises(ProtocolError, match="leaves the sum"):
            SumClient.from_bytes(plan, bad)
    for other in (SumPlan(3, 2, DIMENSION, b"next round"), SumPlan(3, 3, DIMENSION, b"round")):
        with pytest.raises(ProtocolError, match="belongs to another plan"):
            SumClient.from_bytes(other, clients[1].to_bytes())


def test_changed_messages_are_refused() -> None:
    plan, codes = SumPlan(3, 2, DIMENSION, b"round"), bits(3)
    clients = {i: SumClient(plan, i) for i in codes}
    server = SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    swapped = {2: inboxes[1][3], 3: inboxes[1][2]}
    with pytest.raises(InvalidParameter, match="authentication"):
        clients[1].mask(codes[1], swapped)
    with pytest.raises(InvalidParameter, match="whole numbers from 0 to 1"):
        clients[2].mask(codes[2] + 1, inboxes[2])
    other = SumClient(plan, 1)
    other.advertise()
    with pytest.raises(ProtocolError, match="own"):
        other.share(published)


def test_a_client_that_has_sent_its_vector_keeps_no_secret_that_opens_it() -> None:
    """What is put away between the third step and the last must not unmask what the third step sent."""
    plan, codes = SumPlan(3, 2, DIMENSION, b"round"), bits(3)
    clients, server = {i: SumClient(plan, i) for i in codes}, SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    for i, client in clients.items():
        secrets = json.loads(client.to_bytes())["secrets"]
        server.receive(i, client.mask(codes[i], inboxes[i]))
        kept = client.to_bytes().decode()
        assert all(len(secret) == 64 and secret not in kept for secret in secrets)
    restored = {i: SumClient.from_bytes(plan, client.to_bytes()) for i, client in clients.items()}
    found = server.finish({i: client.unmask(server.arrived()) for i, client in restored.items()})
    assert (found.total == sum(codes.values())).all()
