"""One release on its way through Flower: whose it is, of which round and run, and its payload.

Idea     a payload names its mechanism and nothing else; 32 bytes before it say for which run, round and node it was
         made, so that a payload of yesterday is not taken for one of today. All numbers are little-endian:
         magic ``QBRL``, version and a zero (16 bits each), run, round and node (64 bits each), then the payload.
         The bytes travel as one value of a ConfigRecord, which no strategy takes for weights: averaging it is an
         error, not a number. Releases beyond 16 MiB are cut into several records, as Flower cuts large arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from quietbit._validate import InvalidPayload, refuse_payload

__all__ = ["RECORD", "Release", "join_pieces", "split_pieces"]

MAGIC = b"QBRL"
VERSION = 1
FRAME = struct.Struct("<4sHHQQQ")
RECORD = "quietbit"  # the name of our record in a message, and the prefix of its continuations
FIELD = "release"
PIECE = 16 * 2**20


@final
@dataclass(frozen=True, slots=True)
class Release:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """The frame and the payload."""
        return FRAME.pack(MAGIC, VERSION, 0, self.run, self.round, self.node) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Read a release; the payload is left for the aggregator to check."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, zero, run, number, node = FRAME.unpack_from(data)
        if magic != MAGIC or zero != 0:
            refuse_payload("the first bytes of the release", f"{MAGIC!r}", repr(bytes(data[:8])))
        if version != VERSION:
            refuse_payload("version of the release", f"{VERSION}", version)
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, mine, found in (("run", run, self.run), ("round", number, self.round), ("node", node, self.node)):
            if mine != found:
                refuse_payload(f"{name} of the release", f"{mine}", found)


def split_pieces(data: bytes) -> dict[str, dict[str, bytes]]:
    """The records of a release, by name: one, or several where it is long."""
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    return {RECORD if place == 0 else f"{RECORD}-{place}": {FIELD: piece} for place, piece in enumerate(pieces)}


def join_pieces(records: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The bytes of a release from the records of a reply; anything but `split_pieces`' work is refused."""
    pieces: list[bytes] = []
    while (name := RECORD if not pieces else f"{RECORD}-{len(pieces)}") in records:
        record = records[name]
        value = record.get(FIELD)
        if set(record) != {FIELD} or not isinstance(value, bytes):
            refuse_payload(f"record {name} of the reply", f"one field {FIELD} of bytes", f"the fields {sorted(record)}")
        pieces.append(value)
    if not pieces:
        raise InvalidPayload(
            "The reply must hold one quietbit release, got none (is PrivateUplink among the mods of the client app?)."
        )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
