"""A release's frame: the run, round and node that it was made for, before its payload.

Idea     a payload names its mechanism alone. The frame binds it to one request, so that a server
         takes no release of another run or round, and none of another node's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import final

from quietbit.errors import refuse_payload

__all__ = ["Framed"]

MAGIC = b"QBR"  # then version, round, run and node, little-endian, and the payload
VERSION = 2
FRAME = struct.Struct("<3sBIQQ")


@final
@dataclass(frozen=True, slots=True)
class Framed:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Return the frame followed by the payload."""
        return FRAME.pack(MAGIC, VERSION, self.round, self.run, self.node) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Framed:
        """Read a release; the aggregator checks its payload."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, number, run, node = FRAME.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            refuse_payload(
                "magic and version of the release",
                f"{MAGIC!r} and {VERSION}",
                f"{magic!r} and {version}",
            )
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, expected, value in (
            ("run", run, self.run),
            ("round", number, self.round),
            ("node", node, self.node),
        ):
            if expected != value:
                refuse_payload(f"{name} of the release", f"{expected}", value)
