"""The downlink: a round's outcome in a few kilobytes, which every holder of the last model replays.

Idea     where all clients of a round keep the same k rotated coordinates, the mean of their
         releases is k numbers. The server broadcasts these instead of the model; a client with the
         model of the previous round puts them back into their rows, rotates, and takes the same
         step. The server steps from the bytes that it broadcasts, and digests of the state before
         and after reveal any difference.
Symbols  d parameters w, momentum buffer v; g: the mean of a round put back into d coordinates; a
         step is v <- mu v + g, w <- w - eta v. r: the quantisation residual so far, on the p
         rotated coordinates.
Source   docs/theory/shared-rows.md: why sharing rows does not change the account, and how it
         changes the error.

State is float32, and a step is a fixed sequence of float32 operations, one rounding each, so that
it has the same bits with any number of threads and any instruction set; so has
`SharedRows.unproject`, the map from k numbers to d. A client does not trust a broadcast: its length
follows from the mechanism and is checked before anything is read, and a state whose digest is not
the one announced is reported instead of used, so that the full model is sent.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import IO, Any, final

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit.errors import (
    InvalidParameter,
    InvalidPayload,
    check_int,
    check_real,
    refuse_payload,
    require,
)
from quietbit.kernel.transform import padded_size
from quietbit.mechanism.abilities import SharedRows
from quietbit.mechanism.base import Mechanism

__all__ = ["Broadcast", "Diverged", "Downlink", "OutOfStep", "Replica", "ServerStep", "replay_all"]

MAGIC = b"qbdn"
VERSION = 1
HEAD = struct.Struct(
    "<4sBBHIIfff32s32s"
)  # magic, version, bits, zero, round, k, step size, momentum, scale, digests
FILE_HEAD = struct.Struct("<4sBBHIQ32s")  # magic, version, has momentum, zero, round, d, digest
KINDS = {32: "<f4", 16: "<i2", 8: "<i1"}  # dtypes of broadcast numbers by bits
BITS = tuple(KINDS)
PIECE = 1 << 16  # parameters per step of the loop, so that they stay in the cache
LARGEST = 2.0**64  # broadcast number, so that the rotated update stays finite
LOG_BYTES = 1 << 26


class OutOfStep(InvalidPayload):
    """A broadcast for another state than this one: ask for the full model."""


class Diverged(InvalidParameter):
    """A step that would make the model infinite or NaN."""


def _single(value: Any) -> float:
    """Return the nearest float32 number."""
    return float(np.float32(value))


@final
@attrs.frozen
class ServerStep:
    """The server's step on the model: v <- momentum v + mean, w <- w - rate v; both are float32 numbers."""

    rate: float = attrs.field(default=1.0, converter=_single)
    momentum: float = attrs.field(default=0.0, converter=_single)

    def __attrs_post_init__(self) -> None:
        """Refuse a rate that is not positive, and a momentum of 1 or more."""
        check_real(self.rate, "rate")
        require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "at least 0 and below 1")


@final
@attrs.frozen(eq=False)
class Broadcast:
    """One round as the server sends it: k numbers, the step, and digests of the state before and after."""

    round: int
    step: ServerStep
    bits: int
    scale: float
    codes: NDArray[Any]
    before: bytes
    after: bytes

    def values(self) -> NDArray[np.float32]:
        """Return the k numbers that server and clients step with."""
        if self.bits == 32:
            return np.asarray(self.codes, dtype=np.float32)
        return self.codes.astype(np.float32) * np.float32(self.scale)

    def to_bytes(self) -> bytes:
        """Return the header and the k numbers, little-endian."""
        step = self.step
        count = self.codes.size
        given = (self.round, count, step.rate, step.momentum, self.scale, self.before, self.after)
        return (
            HEAD.pack(MAGIC, VERSION, self.bits, 0, *given)
            + self.codes.astype(KINDS[self.bits]).tobytes()
        )

    @classmethod
    def from_bytes(cls, content: bytes, count: int) -> Broadcast:
        """Read a broadcast of ``count`` numbers; anything else is refused before it is unpacked."""
        if not HEAD.size <= len(content) <= HEAD.size + 4 * count:
            refuse_payload(
                "length of a broadcast", f"that of {count} numbers", f"{len(content)} bytes"
            )
        magic, version, bits, zero, number, many, rate, momentum, scale, before, after = (
            HEAD.unpack_from(content)
        )
        if (magic, version, zero) != (MAGIC, VERSION, 0):
            refuse_payload(
                "start of a broadcast", f"{MAGIC!r} of version {VERSION}", (magic, version)
            )
        if bits not in KINDS or many != count or len(content) != HEAD.size + count * bits // 8:
            refuse_payload(
                "broadcast", f"{count} numbers", f"{many} of {bits} bits in {len(content)} bytes"
            )
        codes = np.frombuffer(content, dtype=KINDS[bits], offset=HEAD.size)
        if not (
            0 <= scale <= LARGEST * (bits < 32)
            and bool((np.abs(codes.astype(np.float64)) <= LARGEST).all())
        ):
            refuse_payload("numbers of a broadcast", "at most 2^64 in magnitude", "others")
        try:
            step = ServerStep(rate, momentum)
        except InvalidParameter as error:
            raise InvalidPayload(f"The step of a broadcast is refused: {error}") from error
        return cls(number, step, bits, scale, codes, before, after)


@final
class Replica:
    """The model and the state of the server's step, identical on server and clients."""

    def __init__(self, weights: Any, *, round: int = 0, speed: Any = None) -> None:
        """Start from a copy of a flat float32 model; ``round`` is the last round that changed it, 0 for none."""
        self.weights = _flat(weights, "weights")
        if speed is None:
            self.speed = None
        else:
            self.speed = _flat(speed, "speed")
        if self.speed is not None:
            require(
                self.speed.size == self.weights.size,
                "size of speed",
                self.speed.size,
                f"{self.weights.size}",
            )
        self.round = check_int(round, "round", 0, 2**32 - 1)
        self.digest = self._digest()

    def replay(self, content: bytes, mechanism: Mechanism) -> None:
        """Take the step of the next round; unless this is the state before it, refuse and change nothing.

        Args:
            content: the bytes of a broadcast.
            mechanism: the round's, with its shared rows (`Mechanism.for_round`).

        Raises:
            OutOfStep: this is another state than the broadcast's, or the step led to another one.
                In the second case the replica must not be used any more: its ``digest`` is empty.
        """
        found = Broadcast.from_bytes(content, SharedRows.of(mechanism).shared_rows)
        if found.round <= self.round or found.before != self.digest:
            raise OutOfStep(
                f"A broadcast of round {found.round} needs the state before it, got round {self.round}."
            )
        self.take(found, mechanism)
        if self.digest != found.after:
            self.digest = b""
            raise OutOfStep(
                f"The step of round {found.round} led to another model than the server's."
            )

    def take(self, broadcast: Broadcast, mechanism: Mechanism) -> None:
        """Take a broadcast's step without comparing digests, as the server does with its own."""
        mean = np.asarray(
            SharedRows.of(mechanism).unproject(broadcast.values().astype(np.float64)),
            dtype=np.float32,
        )
        require(
            mean.size == self.weights.size,
            "size of the model",
            self.weights.size,
            f"{mean.size}, the mechanism's",
        )
        rate = np.float32(broadcast.step.rate)
        momentum = np.float32(broadcast.step.momentum)
        if broadcast.step.momentum and self.speed is None:
            self.speed = np.zeros_like(self.weights)
        hashes = [hashlib.sha256() for _ in self._parts()]
        for start in range(
            0, mean.size, PIECE
        ):  # one pass: a piece is stepped and hashed while it is in the cache
            part = slice(start, start + PIECE)
            change = mean[part]
            if self.speed is not None:
                speed = self.speed[part]
                speed *= momentum
                speed += change
                change = speed
            self.weights[part] -= change * rate
            for found, whole in zip(hashes, self._parts(), strict=True):
                found.update(whole[part].data)
        self.round = broadcast.round
        self.digest = self._digest(hashes)

    def copy(self) -> Replica:
        """Return a copy of the state."""
        found = copy(self)
        found.weights = self.weights.copy()
        found.speed = None if self.speed is None else self.speed.copy()
        return found

    def write(self, file: IO[bytes]) -> None:
        """Write the state to an open file."""
        fast = self.speed is not None
        file.write(
            FILE_HEAD.pack(MAGIC, VERSION, fast, 0, self.round, self.weights.size, self.digest)
        )
        for part in self._parts():
            file.write(part.data)

    @classmethod
    def read(cls, file: IO[bytes], size: int) -> Replica:
        """Read a written state of ``size`` parameters; refuse a damaged one, so that the full model is requested."""
        head = file.read(FILE_HEAD.size)
        if len(head) != FILE_HEAD.size:
            raise OutOfStep("The saved model is too short.")
        magic, version, fast, zero, number, count, digest = FILE_HEAD.unpack(head)
        if (magic, version, zero, count) != (MAGIC, VERSION, 0, size) or fast not in (0, 1):
            raise OutOfStep(f"The saved model is not one of {size} parameters.")
        content = file.read(4 * size * (1 + fast))
        if len(content) != 4 * size * (1 + fast):
            raise OutOfStep("The saved model is damaged: it is too short.")
        parts = np.frombuffer(content, dtype="<f4").reshape(1 + fast, size)
        if not bool(np.isfinite(parts).all()):
            raise OutOfStep("The saved model is damaged: it is not finite.")
        found = cls(parts[0], round=number, speed=parts[1] if fast else None)
        if found.digest != digest:
            raise OutOfStep("The saved model is damaged: its digest is not the one that was saved.")
        return found

    @property
    def nbytes(self) -> int:
        """The size of the whole state, which is that of the full model."""
        return sum(part.nbytes for part in self._parts())

    def _parts(self) -> list[NDArray[Any]]:
        return [
            part.astype("<f4", copy=False)
            for part in (self.weights, self.speed)
            if part is not None
        ]

    def _digest(self, hashes: list[Any] | None = None) -> bytes:
        """Hash the round, the size and the hashes of weights and momentum, as little-endian bytes."""
        if hashes is None:
            parts = [hashlib.sha256(part.data) for part in self._parts()]
        else:
            parts = hashes
        head = FILE_HEAD.pack(
            MAGIC, VERSION, len(parts) - 1, 0, self.round, self.weights.size, bytes(32)
        )
        return hashlib.sha256(head + b"".join(part.digest() for part in parts)).digest()


@final
class Downlink:
    """The server's half: its replica, the quantisation residual, and the broadcasts of the last rounds.

    Args:
        weights: the flat float32 model that the run starts from.
        step: how a mean changes the model.
        bits: per broadcast number: 32 for float32, or 16 or 8 with one scale per round. The
            rounding residual waits in its rotated coordinate and is sent when that is kept again.
        log_bytes: how many bytes of broadcasts are kept for clients that missed rounds.
        round: the last round that changed the model.
    """

    def __init__(
        self,
        weights: Any,
        step: ServerStep | None = None,
        *,
        bits: int = 32,
        log_bytes: int = LOG_BYTES,
        round: int = 0,
    ) -> None:
        """Start a run."""
        require(bits in KINDS, "bits", bits, "32, 16 or 8")
        self.replica = Replica(weights, round=round)
        self.step = step or ServerStep()
        self.bits = bits
        self._log: deque[tuple[int, bytes]] = deque()
        self._room = check_int(log_bytes, "log_bytes", 0)
        self._held = 0  # bytes in the log; the last round that is not in it
        self._lost = self.replica.round
        self._left: NDArray[np.float32] | None = None

    def advance(self, kept: Any, mechanism: Mechanism, number: int | None = None) -> bytes:
        """Take one round's step from the mean of its kept coordinates, and return its broadcast.

        ``number`` is the round's and exceeds that of the last step; by default the next one. A step
        that would make the model infinite or NaN is refused and not taken.
        """
        mean = np.asarray(kept, dtype=np.float32)
        rows = SharedRows.of(mechanism).shared_rows
        require(mean.shape == (rows,), "shape of the mean", mean.shape, f"({rows},)")
        require(
            bool((np.abs(mean) <= LARGEST).all()),
            "mean of the round",
            "others",
            "at most 2^64 in magnitude",
        )
        scale = 0.0
        codes = mean
        if self.bits < 32:
            scale, codes = self._quantised(mean, mechanism)
        state = self.replica
        number = check_int(
            state.round + 1 if number is None else number, "round", state.round + 1, 2**32 - 1
        )
        draft = Broadcast(number, self.step, self.bits, scale, codes, state.digest, b"")
        before = state.copy()
        state.take(draft, mechanism)
        if not bool(np.isfinite(state.weights).all()):
            self.replica = before
            raise Diverged(f"The step of round {number} would leave a model that is not finite.")
        content = attrs.evolve(draft, after=state.digest).to_bytes()
        self._log.append((draft.round, content))
        self._held += len(content)
        while self._held > self._room and self._log:
            self._lost, lost = self._log.popleft()
            self._held -= len(lost)
        return content

    def since(self, round: int) -> list[bytes] | None:
        """Return the broadcasts after ``round``; None where the full model is smaller or the log is incomplete."""
        known = self._lost <= check_int(round, "round", 0) <= self.replica.round
        found = [content for number, content in self._log if number > round]
        return found if known and sum(map(len, found)) < self.replica.nbytes else None

    def _quantised(
        self, mean: NDArray[np.float32], mechanism: Mechanism
    ) -> tuple[float, NDArray[Any]]:
        places = SharedRows.of(mechanism).row_places()
        if self._left is None:
            self._left = np.zeros(padded_size(self.replica.weights.size), dtype=np.float32)
        wanted = self._left[places] + mean
        most = 2 ** (self.bits - 1) - 1
        scale = np.float32(np.abs(wanted).max() / most)
        if not scale > 0:
            self._left[places] = wanted
            return 0.0, np.zeros(mean.size, dtype=KINDS[self.bits])
        codes = np.clip(np.rint(wanted / scale), -most, most).astype(KINDS[self.bits])
        self._left[places] = wanted - codes.astype(np.float32) * scale
        return float(scale), codes


def replay_all(
    replica: Replica, broadcasts: Iterable[bytes], mechanism: Mechanism, run: bytes
) -> None:
    """Bring a replica up to date from the broadcasts that it missed, in order; skip those that it has."""
    for content in broadcasts:
        number = Broadcast.from_bytes(content, SharedRows.of(mechanism).shared_rows).round
        if number > replica.round:
            replica.replay(content, mechanism.for_round(run, number))


def _flat(values: Any, name: str) -> NDArray[np.float32]:
    given = np.asarray(values)
    require(
        given.ndim == 1 and given.dtype == np.float32,
        name,
        f"{given.ndim}-D {given.dtype}",
        "1-D float32",
    )
    require(bool(np.isfinite(given).all()), name, "others", "finite numbers")
    return np.array(given, dtype=np.float32)
