"""What the server writes beside the model: the round, and which mechanism it will decode with.

Idea     client and server build the mechanism from the same run config; the server's message repeats what it has built
         (identity, dimension, clip), so that two ends that disagree find out before anyone trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from quietbit._validate import InvalidParameter, finite_real, require, whole_number
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import identity_of

__all__ = ["Request"]

VERSION = 1
FIELDS = {"version", "round", "dimension", "clip", "identity"}
MOST_ROUNDS = 2**47  # of what seeded words can tell apart


@final
@dataclass(frozen=True, slots=True)
class Request:
    """A round of the run and the mechanism it is for."""

    round: int
    dimension: int
    clip: float
    identity: bytes

    @classmethod
    def of(cls, number: int, mechanism: Mechanism) -> Request:
        """What the server asks in round ``number``, from 1 on."""
        ball = mechanism.domain
        number = whole_number(number, "round", 1, MOST_ROUNDS)
        return cls(number, ball.dimension, ball.radius, identity_of(mechanism))

    def to_record(self) -> dict[str, int | float | bytes]:
        """The values of a ConfigRecord."""
        return {
            "version": VERSION,
            "round": self.round,
            "dimension": self.dimension,
            "clip": self.clip,
            "identity": self.identity,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Request:
        """Read the server's values; a message without them is not from a private strategy."""
        if record is None or set(record) != FIELDS:
            raise InvalidParameter(
                "The server's message must carry quietbit's settings, and does not: is its strategy a PrivateStrategy?"
            )
        require(record["version"] == VERSION, "version of the server's quietbit", record["version"], f"{VERSION}")
        require(isinstance(record["identity"], bytes), "identity of the mechanism", record["identity"], "bytes")
        return cls(
            round=whole_number(record["round"], "round", 1, MOST_ROUNDS),
            dimension=whole_number(record["dimension"], "dimension", 1, MAX_DIMENSION),
            clip=finite_real(record["clip"], "clip"),
            identity=record["identity"],
        )

    def expect(self, mechanism: Mechanism) -> None:
        """Refuse a server that decodes with another mechanism than this node would encode with."""
        ball = mechanism.domain
        require(
            self.dimension == ball.dimension, "dimension of the server's mechanism", self.dimension, f"{ball.dimension}"
        )
        require(self.clip == ball.radius, "clip of the server's mechanism", self.clip, f"{ball.radius!r}")
        mine = identity_of(mechanism)
        rule = f"{mine.hex()[:16]}..., this node's"
        require(self.identity == mine, "identity of the server's mechanism", f"{self.identity.hex()[:16]}...", rule)
