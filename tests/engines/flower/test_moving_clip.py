"""A clip that moves through Flower by scouts: what is refused of them, and which numbers Flower keeps."""

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from engines.flower.kit import CONFIG, Federation, model

SCOUTED = {**CONFIG, "quietbit.adaptive-clip.every": 2, "quietbit.releases": 6}
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


@pytest.fixture
def eager(monkeypatch):
    """Let the clip move with every answer, however few there are and however loud the noise."""
    monkeypatch.setattr("quietbit.federation.moving_clip.SURE", 0.0)
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)


def clips(strategy):
    return [entry.clip for entry in strategy.report().rounds]


def test_a_release_for_another_round_or_kind_is_refused(eager):
    federation = Federation(config=SCOUTED)
    old = {reply.metadata.src_node_id: reply for reply in federation.ask(1, model())}
    federation.strategy.aggregate_train(1, list(old.values()))
    replies = federation.ask(2, model())
    for reply in replies:
        # The frame of round 2 around a payload of round 1: run, round and node are right, the clip
        # or the kind is not.
        before = old[reply.metadata.src_node_id].content["quietbit"]["release"]
        reply.content["quietbit"]["release"] = (
            reply.content["quietbit"]["release"][:24] + before[24:]
        )
    federation.strategy.aggregate_train(2, replies)
    last = federation.strategy.report().rounds[-1]
    assert (last.answered, last.scouted, last.refused) == (0, 0, 4)
    assert clips(federation.strategy)[1:] == [clips(federation.strategy)[1]]


def test_a_clip_that_moves_is_among_the_numbers_of_a_round():
    federation = Federation(config=SCOUTED)
    _, metrics = federation.strategy.aggregate_train(1, federation.ask(1, model()))
    last = federation.strategy.report().rounds[-1]
    assert metrics["quietbit-clip"] == last.clip == 1.0
    assert metrics["quietbit-scouted"] == last.scouted
    assert last.scouted + last.answered == 4
