"""A server that moves the clip: within the owner's range, at one cost for all clips."""

import numpy as np
import pytest

from federation.node.makers import DIMENSION, MECHANISM, books, declines, forbids, keeper, request
from quietbit import Adjacency, InvalidPayload
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit.node.budget import account_of
from quietbit.node.refusal import BudgetSpent
from quietbit.node.request import ProposedMechanism, description_of, run_name
from quietbit.privacy.account import Account
from quietbit.target import Target
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

UPDATE = np.linspace(-0.2, 0.3, DIMENSION)
MOVING = Scouted(MECHANISM, 2, 0.2)
SENDS = [number for number in range(1, 60) if MOVING.is_turn_of(run_name(7), number, 11)]
SCOUTS = sorted(set(range(1, 60)) - set(SENDS))
BOTH = ("imvu", "scout")


def payload(data):
    return bytes(Framed.from_bytes(data).payload)


def test_the_ledger_notes_one_mechanism_and_one_price_for_all_clips_updates_and_answers(tmp_path):
    node, numbers = keeper(tmp_path, mechanisms=BOTH), range(1, 7)
    assert {number in SENDS for number in numbers} == {True, False}
    for number, clip in zip(numbers, (1.0, 0.3, 1.9, 0.31, 1.0, 0.5), strict=True):
        mechanism = MOVING if number in SENDS else Scout(MOVING)
        data = payload(node.accept(request(number, mechanism, clip=clip)).release([UPDATE]))
        Uplink(mechanism, clip=clip).aggregator().add(data)
        for other in (Uplink(mechanism, clip=clip * 1.001), Uplink(MECHANISM, clip=clip)):
            with pytest.raises(InvalidPayload):
                other.receive([data])
    found = books(tmp_path)
    assert list(found.mechanisms) == [ProposedMechanism.read(description_of(MOVING)).identity]
    cap = Target(8.0, 1e-5, Adjacency.REPLACE_ONE)
    each = ProposedMechanism.read(description_of(Scout(MOVING))).cost(Adjacency.REPLACE_ONE, 0)
    assert account_of(found, cap, 0).epsilon() == Account(cap, "adaptive").spend(each, 6).epsilon()


def test_an_owner_who_does_not_name_scouts_has_none(tmp_path):
    with forbids("mechanisms"):
        keeper(tmp_path).accept(request(SCOUTS[0], Scout(MOVING)))
    assert books(tmp_path).releases == 0


@pytest.mark.parametrize(
    ("clip", "rule"),
    [
        (2.001, "largest-clip"),
        (1e9, "largest-clip"),
        (0.1999, "smallest-clip"),
        (1e-9, "smallest-clip"),
    ],
)
def test_the_owner_bounds_how_far_a_server_may_move_it(tmp_path, clip, rule):
    node = keeper(tmp_path, smallest_clip=0.2)
    declines(node, rule, request(SENDS[0], MOVING, clip=clip))
    node.accept(request(SENDS[0], MOVING, clip=0.2))
    assert books(tmp_path).releases == 1


@pytest.mark.parametrize("asks", [False, True])
def test_an_answer_that_tells_more_makes_every_release_dearer(tmp_path, asks):
    """Whoever may have to answer pays for it: the cost is that of what a node would sample with."""
    telling = Scouted(MECHANISM, 2, 1 - 1e-8)
    node = keeper(tmp_path, mechanisms=BOTH)
    declines(
        node,
        BudgetSpent,
        request(SCOUTS[0] if asks else SENDS[0], Scout(telling) if asks else telling),
    )


def test_whatever_goes_wrong_is_the_coin_of_an_update_without_length(tmp_path):
    """Thirty-four coins are not all alike, but in one of 8e9 runs; an honest answer would be."""
    sure = Scout(Scouted(MECHANISM, 2, 1 - 1e-8))
    rounds = [number for number in range(1, 400) if sure.is_turn_of(run_name(7), number, 11)]
    node = keeper(tmp_path, epsilon=1e6, mechanisms=BOTH, releases=200, releases_per_day=200)
    said = {kind: [] for kind in (0, 1, 2)}
    for place, number in enumerate(rounds[:102]):
        kind = place % 3
        update = (None, [np.full(DIMENSION, np.nan)], [UPDATE])[kind]
        accepted = node.accept(request(number, sure, clip=1e-3))
        said[kind].append(payload(accepted.release(update))[-5:])
    assert len(set(said[0])) == len(set(said[1])) == 2
    assert len(set(said[2])) == 1
