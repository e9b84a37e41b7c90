"""The report: a table, JSON that a parser reads, and sizes that are those of Flower's own
objects.
"""

import pickle

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from engines.flower.kit import DIMENSION, Federation, be_the_server, model
from quietbit.flower.transport import wire_sizes

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")


def run():
    federation, arrays = Federation(nodes=(1, 2, 3)), model()
    sent = received = 0
    for number in (1, 2):
        messages = federation.messages(number, arrays)
        replies = [federation.answer(message) for message in messages]
        sent += sum(map(serialised, messages))
        received += sum(map(serialised, replies))
        arrays, _ = federation.strategy.aggregate_train(number, replies)
    return federation.strategy.report(), sent, received


def serialised(message):
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def test_bytes_are_those_of_the_serialised_messages():
    report, sent, received = run()
    assert abs(report.downlink - sent) <= 8 * len(
        report.rounds
    )  # ids of nodes differ by a few digits
    assert report.uplink == received
    for entry in report.rounds:
        assert entry.uplink_payload == 3 * (64 + (DIMENSION + 7) // 8)
        assert entry.uplink <= 3 * ((DIMENSION + 7) // 8 + 1024)


def test_shared_contents_are_measured_once_and_others_apart():
    be_the_server()
    content = RecordDict({"arrays": model()})
    one, two, small = (
        Message(content, 1, "train"),
        Message(content, 2, "train"),
        Message(RecordDict(), 1, "train"),
    )
    sizes = wire_sizes([one, two, small])
    assert sizes == [serialised(one), serialised(one), serialised(small)]
    assert sizes[2] < sizes[0]
    fresh = Message(RecordDict({"arrays": model()}), 1, "train")
    before = len(pickle.dumps(fresh))
    wire_sizes([fresh])
    assert len(pickle.dumps(fresh)) == before  # measuring leaves nothing behind
