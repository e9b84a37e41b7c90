"""An uplink within a policy, without an engine: release 51 of a guarantee for 50 is refused."""

import contextlib

import numpy as np
import pytest

from federation.node.makers import DIMENSION, MECHANISM, books, policy, write_policy
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit.node.ledger import LedgerError
from quietbit.node.refusal import BudgetSpent
from quietbit.node.sender import PrivateSender
from quietbit.wire.uplink import Uplink
from refusals import refuses

UPDATE = {"weight": np.full((6, 6), 0.1, dtype=np.float32), "bias": np.zeros(6)}


def test_the_fifty_first_is_refused_also_after_a_restart(tmp_path):
    path, uplink = (
        write_policy(tmp_path, epsilon=50.0, releases_per_day=100),
        Uplink(MECHANISM, like=UPDATE),
    )
    payloads = [PrivateSender(uplink, path).send(UPDATE) for _ in range(2)]
    sender = PrivateSender(uplink, path)
    payloads += [sender.send(UPDATE) for _ in range(48)]
    for again in (sender, PrivateSender(uplink, path, run=3)):
        with pytest.raises(BudgetSpent, match="50 releases"):
            again.send(UPDATE)
    mean = uplink.receive(payloads)
    assert mean["weight"].shape == (6, 6)
    assert len(set(payloads)) == 50
    assert sender.guarantee().epsilon_upper <= 50.0


def test_a_calibrated_guarantee_stops_at_its_cap(tmp_path):
    path = write_policy(tmp_path, epsilon=6.0)
    sender, sent = PrivateSender(Uplink(MECHANISM), path), 0
    with contextlib.suppress(BudgetSpent):
        while sender.send(np.zeros(DIMENSION)):
            sent += 1
    with pytest.raises(BudgetSpent, match=r"epsilon 6 at delta 1e-05 .* 5\.\d+ is spent"):
        sender.send(np.zeros(DIMENSION))
    assert 3 < sent < 50
    assert 4.0 < sender.guarantee().epsilon_upper <= 6.0
    assert books(tmp_path).releases == sent


def test_what_cannot_be_sent_is_zero_and_counts(tmp_path):
    sender = PrivateSender(Uplink(MECHANISM, like=UPDATE), write_policy(tmp_path))
    good = sender.send(UPDATE)
    for wrong in (
        {"weight": np.full((6, 6), np.nan), "bias": np.zeros(6)},
        {"weight": np.zeros((6, 6))},
        None,
        3,
    ):
        assert len(sender.send(wrong)) == len(good)
    assert books(tmp_path).releases == 5


def test_a_sender_of_a_clip_that_clients_scout_for_is_not_stuck_where_it_would_scout(tmp_path):
    path = write_policy(tmp_path, epsilon=50.0, mechanisms=("imvu", "scout"))
    moving = Scouted(MECHANISM, 2, 0.2)
    for mechanism in (moving, Scout(moving)):
        sender = PrivateSender(Uplink(mechanism), path)
        Uplink(mechanism).aggregator().add_all([sender.send(np.zeros(DIMENSION)) for _ in range(6)])
    assert books(tmp_path).releases == 12


def test_it_needs_a_ledger_and_an_uplink(tmp_path):
    with pytest.raises(LedgerError, match="is missing"):
        PrivateSender(Uplink(MECHANISM), policy(tmp_path))
    with refuses("uplink", "InterpolatedMVU"):
        PrivateSender(MECHANISM, policy(tmp_path))
