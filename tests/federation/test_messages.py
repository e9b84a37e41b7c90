"""What travels in records: requests read as they were written, releases in their frame, pieces
where they are long.
"""

import pytest

from federation.node.makers import DIMENSION, MECHANISM
from plans import engine_plan
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.federation import messages as module
from quietbit.federation.client import Subject, read_request
from quietbit.federation.messages import (
    NodeName,
    answer_of,
    join_pieces,
    request_record,
    split_pieces,
    sum_request,
)
from quietbit.wire.payload import Framed

SAMPLE = Framed(2**64 - 1, 3, 2**63, b"payload")


def test_the_bytes_are_those_of_the_format():
    frame = b"QBR\2" + b"\3\0\0\0" + b"\xff" * 8 + b"\0" * 7 + b"\x80"
    assert SAMPLE.to_bytes() == frame + b"payload"
    found = Framed.from_bytes(frame + b"payload")
    assert found.to_bytes() == SAMPLE.to_bytes()
    found.expect(2**64 - 1, 3, 2**63)
    assert len(frame) == 24


@pytest.mark.parametrize(
    "data", [b"", b"QBR\2", b"x" * 32, b"QBRL\1\0\0\0" + bytes(24), b"QBR\3" + bytes(20)]
)
def test_what_is_no_release_is_refused(data):
    with pytest.raises(InvalidPayload):
        Framed.from_bytes(data)


def test_pieces(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 5)
    pieces = split_pieces(b"0123456789ab")
    assert list(pieces) == ["quietbit", "quietbit-1", "quietbit-2"]
    assert join_pieces(pieces | {"other": {"x": 1}}) == b"0123456789ab"
    assert join_pieces(split_pieces(b"0123")) == b"0123"


@pytest.mark.parametrize(
    "records",
    [{}, {"quietbit": {}}, {"quietbit": {"release": "x"}}, {"quietbit": {"release": b"", "y": 1}}],
)
def test_records_of_another_kind_are_refused(records):
    with pytest.raises(InvalidPayload):
        join_pieces(records)


GIVEN = {"clip": 1.0, "epsilon": 3.0, "adjacency": "zero-out", "releases": 1}
LOCAL = engine_plan("imvu", **GIVEN)
SUMS = engine_plan(
    "imvu", **GIVEN, trust="secure-aggregation", threshold=4, adversary="honest-but-curious"
)
RECORDS = {
    "quietbit": request_record(4, MECHANISM),
    "quietbit-sum": sum_request("shares", 6, 2, b"abc"),
}


def asked(records, plan, name):
    return read_request(records, plan, Subject.UPDATE.parts(plan), name)


def test_a_request_is_read_as_it_was_written():
    found = asked(RECORDS, LOCAL, NodeName(7, 11, 3))
    assert (found.run, found.round, found.node, found.client, found.dimension) == (
        7,
        4,
        11,
        3,
        DIMENSION,
    )
    assert (found.epsilon, found.delta, found.adjacency, found.sum) == (3.0, 1e-5, "zero-out", None)
    part = asked(RECORDS, SUMS, NodeName(7, 11)).sum
    assert (part.step, part.clients, part.number, part.threshold, part.honest, part.table) == (
        "shares",
        6,
        2,
        4,
        4,
        b"abc",
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("quietbit", None),
        ("quietbit", {}),
        ("quietbit", {"round": 1}),
        ("quietbit", {"version": 1}),
        ("quietbit", {"round": 0}),
        ("quietbit", {"round": 2**60}),
        ("quietbit", {"dimension": 2.5}),
        ("quietbit", {"mechanism": b"x"}),
        ("quietbit", {"words": "seeded"}),
        ("quietbit-sum", None),
        ("quietbit-sum", {"step": "five"}),
        ("quietbit-sum", {"clients": 1}),
        ("quietbit-sum", {"number": 0}),
        ("quietbit-sum", {"number": 7}),
        ("quietbit-sum", {"table": 3}),
        ("quietbit-sum", {"version": 0}),
        ("quietbit-sum", {"threshold": 2}),
        ("quietbit-sum", {"number": True}),
    ],
)
def test_other_requests_are_refused(name, change):
    records = dict(RECORDS)
    if change is None:
        del records[name]
    elif (change and set(change) != {"round"}) or name != "quietbit":
        records[name] = {**records[name], **change}
    else:
        records[name] = change
    with pytest.raises(InvalidParameter):
        asked(records, SUMS, NodeName(7, 11))


def test_answers():
    assert answer_of({"step": "keys", "answer": b"x"}, "keys") == b"x"
    for record in (
        None,
        {},
        {"step": "keys"},
        {"step": "shares", "answer": b"x"},
        {"step": "keys", "answer": "x"},
    ):
        with pytest.raises(InvalidParameter):
            answer_of(record, "keys")
