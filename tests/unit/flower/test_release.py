"""The frame of a release: bound to its run, round and node; cut into pieces where it is long."""

import pytest

from quietbit._validate import InvalidPayload
from quietbit.flower import release as module
from quietbit.flower.release import Release, join_pieces, split_pieces

SAMPLE = Release(2**64 - 1, 3, 2**63, b"payload")


def test_the_bytes_are_those_of_the_format():
    assert SAMPLE.to_bytes() == (
        b"QBRL" + b"\1\0" + b"\0\0" + b"\xff" * 8 + b"\3" + b"\0" * 7 + b"\0" * 7 + b"\x80" + b"payload"
    )


def test_it_reads_what_it_writes():
    found = Release.from_bytes(SAMPLE.to_bytes())
    assert (found.run, found.round, found.node, bytes(found.payload)) == (2**64 - 1, 3, 2**63, b"payload")
    found.expect(2**64 - 1, 3, 2**63)


@pytest.mark.parametrize(
    ("run", "number", "node", "says"),
    [
        (1, 3, 2**63, "run of the release must be 1"),
        (2**64 - 1, 4, 2**63, "round of the release must be 4, got 3"),
        (2**64 - 1, 3, 9, "node of the release must be 9"),
    ],
)
def test_another_binding_is_refused(run, number, node, says):
    with pytest.raises(InvalidPayload, match=says):
        SAMPLE.expect(run, number, node)


@pytest.mark.parametrize("data", [b"", b"QBRL", b"x" * 32, b"QBRL\2\0\0\0" + bytes(24), b"QBRL\1\0\1\0" + bytes(24)])
def test_what_is_no_release_is_refused(data):
    with pytest.raises(InvalidPayload):
        Release.from_bytes(data)


def test_pieces(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 5)
    pieces = split_pieces(b"0123456789ab")
    assert list(pieces) == ["quietbit", "quietbit-1", "quietbit-2"]
    assert join_pieces(pieces | {"other": {"x": 1}}) == b"0123456789ab"
    assert join_pieces(split_pieces(b"0123")) == b"0123"


@pytest.mark.parametrize(
    "records", [{}, {"quietbit": {}}, {"quietbit": {"release": "x"}}, {"quietbit": {"release": b"", "y": 1}}]
)
def test_records_of_another_kind_are_refused(records):
    with pytest.raises(InvalidPayload):
        join_pieces(records)
