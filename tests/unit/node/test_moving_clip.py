"""A server that moves the clip: within the owner's range, at one price, noted once, each release for its own clip."""

import numpy as np
import pytest

from quietbit import Adjacency, InvalidPayload
from quietbit.mechanism.adaptive_clip import AdaptiveClip
from quietbit.node.policy import NotAllowed, Policy
from quietbit.node.pricing import ProposedMechanism, description_of
from quietbit.node.question import Framed
from quietbit.node.release import BudgetSpent, account_of
from quietbit.privacy.account import Account
from quietbit.target import Target
from quietbit.wire.uplink import Uplink
from unit.node.makers import DIMENSION, MECHANISM, books, keeper, policy, question

UPDATE = np.linspace(-0.2, 0.3, DIMENSION)
MOVING = AdaptiveClip(MECHANISM, 1.0, 0.25)


def payload(data):
    return bytes(Framed.from_bytes(data).payload)


def test_the_ledger_notes_one_mechanism_and_one_price_for_all_clips(tmp_path):
    node = keeper(tmp_path)
    for number, clip in enumerate((1.0, 0.3, 1.9, 0.31), start=1):
        mechanism = MOVING.at_clip(clip)
        data = payload(node.accept(question(number, mechanism)).release([UPDATE]))
        assert Uplink(mechanism).collect([data]).answers is not None
        for other in (mechanism.at_clip(clip * 1.001), MECHANISM):
            with pytest.raises(InvalidPayload):
                Uplink(other).receive([data])
    found = books(tmp_path)
    assert list(found.mechanisms) == [ProposedMechanism.read(description_of(MOVING)).identity]
    cap = Target(8.0, 1e-5, Adjacency.REPLACE_ONE)
    each = ProposedMechanism.read(description_of(MOVING.at_clip(17.0))).cost(Adjacency.REPLACE_ONE, 0)
    assert account_of(found, cap, 0).epsilon() == Account(cap, "adaptive").spend(each, 4).epsilon()
    alone = MECHANISM.privacy(Adjacency.REPLACE_ONE)
    assert Account(cap, "adaptive").spend(alone, 4).epsilon() < Account(cap, "adaptive").spend(each, 4).epsilon()


@pytest.mark.parametrize(("clip", "word"), [(2.001, "large"), (1e9, "large"), (0.1999, "small"), (1e-9, "small")])
def test_the_owner_bounds_how_far_a_server_may_move_it(tmp_path, clip, word):
    node = keeper(tmp_path, smallest_clip=0.2)
    with pytest.raises(NotAllowed, match=f"does not allow so {word} a clip"):
        node.accept(question(1, MOVING.at_clip(clip)))
    assert books(tmp_path).releases == 0
    node.accept(question(1, MOVING.at_clip(0.2)))
    assert books(tmp_path).releases == 1


def test_bits_count_towards_the_owners_budget(tmp_path):
    """A bit that tells nearly all of what it is asked is dear, and the node knows what it costs."""
    telling = AdaptiveClip(MECHANISM, 1.0, 15.0)
    with pytest.raises(BudgetSpent):
        keeper(tmp_path).accept(question(1, telling))
    assert books(tmp_path).releases == 0


def test_whatever_goes_wrong_is_a_release_of_zero_that_says_it_was_short(tmp_path):
    sure = AdaptiveClip(MECHANISM, 1e-3, 15.0)
    node = keeper(tmp_path, epsilon=1e6)
    for number, update in enumerate((None, [np.full(DIMENSION, np.nan)]), start=1):
        answers = Uplink(sure).collect([payload(node.accept(question(number, sure)).release(update))]).answers
        assert answers.share == pytest.approx(1.0, abs=1e-5)  # it lies once in three million releases


def test_the_range_is_in_the_file_and_checked(tmp_path):
    found = policy(tmp_path, smallest_clip=0.25)
    path = tmp_path / "policy.toml"
    path.write_text(found.text())
    path.chmod(0o600)
    assert Policy.load(path) == found
    assert "smallest-clip = 0.25" in found.text()
    assert "smallest-clip = 0.0" in policy(tmp_path).text()
    for wrong in (2.5, -1.0, float("nan"), True):
        with pytest.raises(Exception, match=r"smallest.clip must be"):
            policy(tmp_path, smallest_clip=wrong)
