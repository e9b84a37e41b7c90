"""The downlink: a round's outcome in a few kilobytes, which every holder of the last model replays.

Idea     where all clients of a round keep the same k rotated coordinates, the mean of their
         releases is k numbers. The server broadcasts these instead of the model; a client with the
         model of the previous round puts them back into their rows, rotates, and takes the same
         step. The server steps from the bytes that it broadcasts, and digests of the state before
         and after reveal any difference.
Symbols  d parameters w, momentum buffer v; g: the mean of a round put back into d coordinates; a
         step is v <- mu v + g, w <- w - eta v.
Source   docs/theory/vector-mechanism.md: why sharing rows does not change the account, and how it
         changes the error.

State is float32, and a step is a fixed sequence of float32 operations, one rounding each, so that
it has the same bits with any number of threads and any instruction set; so has
`SharedRows.unproject`, the map from k numbers to d. A client does not trust a broadcast: its length
follows from the mechanism and is checked before anything is read. A state whose digest is not the
announced one is reported and not used, and the server then sends the full model.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from typing import IO, Any, TypeAlias, final

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import (
    InvalidParameter,
    InvalidPayload,
    check_int,
    check_real,
    refuse_payload,
    require,
)
from quietbit.mechanism.abilities import SharedRows
from quietbit.mechanism.base import Mechanism

__all__ = [
    "Broadcast",
    "Diverged",
    "Downlink",
    "Lift",
    "OutOfStep",
    "Replica",
    "ServerStep",
    "replay_all",
]

MAGIC = b"qbdn"
VERSION = 1
# magic, version, bits, zero, round, k, step size, momentum, zero, digests
HEAD = struct.Struct("<4sBBHIIfff32s32s")
FILE_HEAD = struct.Struct("<4sBBHIQ32s")  # magic, version, has momentum, zero, round, d, digest
FLOAT = "<f4"
FLOAT_BITS = 32
FLOAT_BYTES = 4
PIECE = 1 << 16  # parameters per step of the loop, so that they stay in the cache
LARGEST = 2.0**64  # broadcast number, so that the rotated update stays finite
LAST_ROUND = 2**32 - 1
LOG_BYTES = 1 << 26
Lift: TypeAlias = Callable[[FloatVector], FloatVector]


class OutOfStep(InvalidPayload):
    """A broadcast or a saved model that does not fit this state: ask for the full model."""


class Diverged(InvalidParameter):
    """A step that would make the model infinite or NaN."""


def _single(value: Any) -> float:
    """Return the nearest float32 number."""
    return float(np.float32(value))


@final
@attrs.frozen
class ServerStep:
    """The server's step: v <- momentum v + mean, w <- w - rate v; both are float32 numbers."""

    rate: float = attrs.field(default=1.0, converter=_single)
    momentum: float = attrs.field(default=0.0, converter=_single)

    def __attrs_post_init__(self) -> None:
        """Refuse a rate that is not positive, and a momentum of 1 or more."""
        check_real(self.rate, "rate")
        require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "at least 0 and below 1")


@final
@attrs.frozen(eq=False)
class Broadcast:
    """One round as sent: k float32 numbers, the step, and digests of the state before and after."""

    round: int
    step: ServerStep
    values: NDArray[np.float32]
    before: bytes
    after: bytes

    def to_bytes(self) -> bytes:
        """Return the header and the k numbers, little-endian."""
        head = HEAD.pack(
            MAGIC,
            VERSION,
            FLOAT_BITS,
            0,
            self.round,
            self.values.size,
            self.step.rate,
            self.step.momentum,
            0.0,
            self.before,
            self.after,
        )
        return head + self.values.astype(FLOAT).tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, count: int) -> Broadcast:
        """Read a broadcast of ``count`` numbers; refuse anything else before reading them."""
        size = HEAD.size + FLOAT_BYTES * count
        if len(content) != size:
            refuse_payload("length of the broadcast", f"{size} bytes", len(content))
        magic, version, bits, zero, number, length, rate, momentum, scale, before, after = (
            HEAD.unpack_from(content)
        )
        if (magic, version) != (MAGIC, VERSION):
            rule = f"{MAGIC!r}, version {VERSION}"
            refuse_payload("start of the broadcast", rule, f"{magic!r}, version {version}")
        if (bits, zero, length, scale) != (FLOAT_BITS, 0, count, 0.0):
            rule = f"{count} numbers of {FLOAT_BITS} bits"
            refuse_payload("header of the broadcast", rule, f"{length} numbers of {bits} bits")
        values = np.frombuffer(content, dtype=FLOAT, offset=HEAD.size).astype(np.float32)
        if not _bounded(values):
            largest = float(np.abs(values).max())
            refuse_payload("numbers of the broadcast", "at most 2^64 in magnitude", largest)
        try:
            step = ServerStep(rate, momentum)
        except InvalidParameter as error:
            raise InvalidPayload(f"The step of the broadcast is not valid: {error}") from error
        return cls(number, step, values, before, after)


@final
class Replica:
    """The model and the state of the server's step, identical on server and clients."""

    def __init__(
        self, weights: Any, *, round: int = 0, speed: Any = None, lift: Lift | None = None
    ) -> None:
        """Copy a flat float32 model; ``round`` is the last round that changed it, 0 for none.

        Where a mechanism works on other numbers than the model's, ``lift`` leads from its mean to
        the model's, with the same bits on server and clients.
        """
        self.lift = lift
        self.weights = _flat(weights, "weights")
        self.speed: NDArray[np.float32] | None = None
        if speed is not None:
            self.speed = _flat(speed, "speed")
            size = self.weights.size
            require(
                self.speed.size == size, "size of speed", self.speed.size, f"{size}, the model's"
            )
        self.round = check_int(round, "round", 0, LAST_ROUND)
        self.digest = self._digest()

    def replay(self, content: bytes, mechanism: Mechanism) -> None:
        """Take the step of the next round; refuse, unchanged, unless this is the state before it.

        Args:
            content: the bytes of a broadcast.
            mechanism: the round's, with its shared rows (`Mechanism.for_round`).

        Raises:
            OutOfStep: the broadcast needs a different state, or the step led to a different model
                than the server's. In the second case the replica must not be used any more: its
                ``digest`` is empty.
        """
        broadcast = Broadcast.from_bytes(content, SharedRows.of(mechanism).shared_rows)
        if broadcast.round <= self.round or broadcast.before != self.digest:
            raise OutOfStep(
                f"The broadcast of round {broadcast.round} needs the state before it, got that of "
                f"round {self.round}: ask for the full model."
            )
        self.take(broadcast, mechanism)
        if self.digest != broadcast.after:
            self.digest = b""
            raise OutOfStep(
                f"The step of round {broadcast.round} led to a model that differs from the "
                "server's: ask for the full model."
            )

    def take(self, broadcast: Broadcast, mechanism: Mechanism) -> None:
        """Take a broadcast's step without comparing digests, as the server does with its own."""
        kept = broadcast.values.astype(np.float64)
        mean = np.asarray(SharedRows.of(mechanism).unproject(kept), dtype=np.float32)
        if self.lift is not None:
            mean = np.asarray(self.lift(mean.astype(np.float64)), dtype=np.float32)
        size = self.weights.size
        require(mean.size == size, "size of the model", size, f"{mean.size}, the mechanism's")
        rate = np.float32(broadcast.step.rate)
        momentum = np.float32(broadcast.step.momentum)
        if broadcast.step.momentum and self.speed is None:
            self.speed = np.zeros_like(self.weights)
        hashes = [hashlib.sha256() for _ in self._arrays()]
        # One pass: a piece is stepped and hashed while it is in the cache.
        for start in range(0, size, PIECE):
            piece = slice(start, start + PIECE)
            change = mean[piece]
            if self.speed is not None:
                speed = self.speed[piece]
                speed *= momentum
                speed += change
                change = speed
            self.weights[piece] -= change * rate
            for running_hash, array in zip(hashes, self._arrays(), strict=True):
                running_hash.update(array[piece].data)
        self.round = broadcast.round
        self.digest = self._digest(hashes)

    def copy(self) -> Replica:
        """Return a copy of the state."""
        replica = copy(self)
        replica.weights = self.weights.copy()
        if self.speed is not None:
            replica.speed = self.speed.copy()
        return replica

    def write(self, file: IO[bytes]) -> None:
        """Write the state to an open file."""
        file.write(self._head(self.digest))
        for array in self._arrays():
            file.write(array.data)

    @classmethod
    def read(cls, file: IO[bytes], size: int, lift: Lift | None = None) -> Replica:
        """Read a saved state of ``size`` parameters; refuse a damaged file with `OutOfStep`."""
        head = file.read(FILE_HEAD.size)
        if len(head) != FILE_HEAD.size:
            raise OutOfStep("The saved model is too short.")
        magic, version, has_momentum, zero, number, count, digest = FILE_HEAD.unpack(head)
        known = (magic, version, zero, count) == (MAGIC, VERSION, 0, size)
        if not known or has_momentum not in (0, 1):
            raise OutOfStep(f"The saved model is not one of {size} parameters.")
        length = FLOAT_BYTES * size * (1 + has_momentum)
        content = file.read(length)
        if len(content) != length:
            raise OutOfStep("The saved model is damaged: it is too short.")
        arrays = np.frombuffer(content, dtype=FLOAT).reshape(-1, size)
        if not bool(np.isfinite(arrays).all()):
            raise OutOfStep("The saved model is damaged: it is not finite.")
        speed = arrays[1] if has_momentum else None
        replica = cls(arrays[0], round=number, speed=speed, lift=lift)
        if replica.digest != digest:
            raise OutOfStep("The saved model is damaged: its digest is not the one that was saved.")
        return replica

    @property
    def nbytes(self) -> int:
        """The size of the state in bytes: weights, and momentum where there is any."""
        return sum(array.nbytes for array in self._arrays())

    def _arrays(self) -> list[NDArray[Any]]:
        """Return the weights, and the momentum where there is any, as little-endian floats."""
        arrays = [self.weights.astype(FLOAT, copy=False)]
        if self.speed is not None:
            arrays.append(self.speed.astype(FLOAT, copy=False))
        return arrays

    def _head(self, digest: bytes) -> bytes:
        has_momentum = self.speed is not None
        return FILE_HEAD.pack(
            MAGIC, VERSION, has_momentum, 0, self.round, self.weights.size, digest
        )

    def _digest(self, hashes: list[Any] | None = None) -> bytes:
        """Hash round, size and the hashes of weights and momentum; compute these if not given."""
        if hashes is None:
            hashes = [hashlib.sha256(array.data) for array in self._arrays()]
        head = self._head(bytes(32))
        return hashlib.sha256(head + b"".join(part.digest() for part in hashes)).digest()


@final
class Downlink:
    """The server's half: its replica, and the broadcasts of the last rounds.

    Args:
        weights: the flat float32 model that the run starts from.
        step: how a mean changes the model.
        log_bytes: how many bytes of broadcasts are kept for clients that missed rounds.
        round: the last round that changed the model.
        lift: leads from a mechanism's mean to the model's, where these differ.
    """

    def __init__(
        self,
        weights: Any,
        step: ServerStep | None = None,
        *,
        log_bytes: int = LOG_BYTES,
        round: int = 0,
        lift: Lift | None = None,
    ) -> None:
        """Start a run."""
        self.replica = Replica(weights, round=round, lift=lift)
        self.step = step or ServerStep()
        self._log: deque[tuple[int, bytes]] = deque()
        self._log_limit = check_int(log_bytes, "log_bytes", 0)
        self._log_size = 0
        self._last_dropped = self.replica.round  # the last round that is not in the log

    def advance(self, kept: Any, mechanism: Mechanism, number: int | None = None) -> bytes:
        """Take one round's step from the mean of its kept coordinates, and return its broadcast.

        ``number`` is the round's and exceeds that of the last step; by default the next one. A step
        that would make the model infinite or NaN is refused and not taken.
        """
        mean = np.asarray(kept, dtype=np.float32)
        rows = SharedRows.of(mechanism).shared_rows
        require(mean.shape == (rows,), "shape of the mean", mean.shape, f"({rows},)")
        if not _bounded(mean):
            largest = float(np.abs(mean).max())
            raise InvalidParameter.of("mean of the round", "at most 2^64 in magnitude", largest)
        state = self.replica
        following = state.round + 1
        if number is None:
            number = following
        number = check_int(number, "round", following, LAST_ROUND)
        draft = Broadcast(number, self.step, mean, state.digest, b"")
        before = state.copy()
        state.take(draft, mechanism)
        if not bool(np.isfinite(state.weights).all()):
            self.replica = before
            raise Diverged(
                f"The step of round {number} would leave a model that is not finite: "
                "lower the learning rate."
            )
        content = attrs.evolve(draft, after=state.digest).to_bytes()
        self._log.append((number, content))
        self._log_size += len(content)
        while self._log_size > self._log_limit and self._log:
            self._last_dropped, dropped = self._log.popleft()
            self._log_size -= len(dropped)
        return content

    def since(self, round: int) -> list[bytes] | None:
        """Return the broadcasts after ``round``; None if one is missing or the model is smaller."""
        if not self._last_dropped <= check_int(round, "round", 0) <= self.replica.round:
            return None
        missed = [content for number, content in self._log if number > round]
        if sum(map(len, missed)) >= self.replica.nbytes:
            return None
        return missed


def replay_all(
    replica: Replica, broadcasts: Iterable[bytes], mechanism: Mechanism, run: bytes
) -> None:
    """Bring a replica up to date by broadcasts in order; skip those that it has taken already."""
    for content in broadcasts:
        number = Broadcast.from_bytes(content, SharedRows.of(mechanism).shared_rows).round
        if number > replica.round:
            replica.replay(content, mechanism.for_round(run, number))


def _bounded(values: NDArray[np.float32]) -> bool:
    """Return whether all numbers are at most 2^64 in magnitude; NaN is not."""
    return bool((np.abs(values) <= LARGEST).all())


def _flat(values: Any, name: str) -> NDArray[np.float32]:
    array = np.asarray(values)
    fits = array.ndim == 1 and array.dtype == np.float32
    require(fits, name, f"{array.ndim}-D {array.dtype}", "1-D float32")
    if not bool(np.isfinite(array).all()):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise InvalidParameter.of(name, "finite", f"{bad} entries that are NaN or infinite")
    return np.array(array, dtype=np.float32)
