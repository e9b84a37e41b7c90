"""Identities stay private; directories are signed, with one key and name per member."""

import json
import pickle

import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.secagg.identity import Identity, MemberList, verified
from refusals import refuses


def directory(count=3):
    nodes = [Identity.new() for _ in range(count)]
    return MemberList.of((f"node {i}", node.public) for i, node in enumerate(nodes)), nodes


def test_a_private_key_is_written_for_its_owner_alone_and_shown_nowhere(tmp_path):
    mine = Identity.new()
    mine.save(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    again = Identity.load(tmp_path / "key")
    assert again.public == mine.public
    assert repr(mine) == f"Identity({mine.public.hex()})"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(mine)
    with pytest.raises(QuietbitError, match="Cannot write the key"):
        mine.save(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with refuses("key"):
        Identity.load(tmp_path / "key")
    (tmp_path / "other").write_text("no key")
    (tmp_path / "other").chmod(0o600)
    with refuses("key", str(tmp_path / "other")):
        Identity.load(tmp_path / "other")
    with pytest.raises(QuietbitError, match="Cannot read the key"):
        Identity.load(tmp_path / "nowhere")


def test_a_signature_is_of_one_message_for_one_purpose():
    mine, other = Identity.new(), Identity.new()
    signature = mine.sign(b"this", b"message")
    assert verified(mine.public, b"this", b"message", signature)
    for case in (
        (other.public, b"this", b"message", signature),
        (mine.public, b"that", b"message", signature),
        (mine.public, b"this", b"massage", signature),
        (mine.public, b"this", b"message", signature[:-1]),
        (mine.public, b"this", b"message", bytes(64)),
        (b"short", b"this", b"message", signature),
    ):
        assert not verified(*case)


def test_a_directory_is_believed_with_its_operator_s_signature_alone(tmp_path):
    operator, stranger = Identity.new(), Identity.new()
    found, nodes = directory()
    text = found.signed(operator)
    (tmp_path / "members.json").write_text(text)
    read = MemberList.load(tmp_path / "members.json", operator.public)
    assert read == found
    assert read.place(nodes[2].public) == 2
    assert read.place(operator.public) is None
    assert read.keys([2, 0]) == (nodes[2].public, nodes[0].public)
    with refuses("place in the directory", 3):
        read.keys([3])
    with refuses("directory"):
        MemberList.read(text, stranger.public)
    members = json.loads(text)["members"]
    sybil = {"name": "sybil", "key": stranger.public.hex()}
    changes = (
        {"members": [*members, sybil]},
        {"members": [{**members[0], "name": "x"}, *members[1:]]},
        {"members": [1]},
        {"signature": "00" * 64},
        {"more": 1},
    )
    changed = [json.dumps(json.loads(text) | change) for change in changes]
    for bad in (*changed, "", "[]", "{}"):
        with refuses("directory"):
            MemberList.read(bad, operator.public)


def test_two_members_are_two_nodes():
    key = Identity.new().public
    with refuses("keys of the members"):
        MemberList.of([("a", key), ("b", key)])
    with refuses("names of the members"):
        MemberList.of([("a", key), ("a", Identity.new().public)])
    for name, bad in (("", key), ("line\nbreak", key), ("a", key[:-1])):
        with pytest.raises(InvalidParameter):
            MemberList.of([(name, bad)])
