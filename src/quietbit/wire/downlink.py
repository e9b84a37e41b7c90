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
from typing import Any, TypeAlias, final

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
]

MAGIC = b"qbdn"
VERSION = 1
# magic, version, bits, zero, round, k, step size, momentum, zero, digests
HEAD = struct.Struct("<4sBBHIIfff32s32s")
STATE = struct.Struct("<IQ")  # round, d
FLOAT = "<f4"
FLOAT_BITS = 32
FLOAT_BYTES = 4
PIECE = 1 << 16  # parameters per step of the loop, so that they stay in the cache
LARGEST = 2.0**64  # broadcast number, so that the rotated update stays finite
LAST_ROUND = 2**32 - 1
LOG_BYTES = 1 << 26
Lift: TypeAlias = Callable[[FloatVector], FloatVector]


class OutOfStep(InvalidPayload):
    """A broadcast that does not fit this state: ask for the full model."""


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
        self.digest = self._digest([hashlib.sha256(array.data) for array in self._arrays()])

    def replay(self, contents: Iterable[bytes], mechanism: Mechanism, run: bytes) -> None:
        """Take the steps of broadcasts in order, but for rounds before the state's own.

        Args:
            contents: the bytes of broadcasts.
            mechanism: the run's, whose rounds have shared rows (`Mechanism.for_round`).
            run: the run's name.

        Raises:
            OutOfStep: a broadcast needs a different state, or its step led to a different model
                than the server's. In the second case the replica must not be used any more: its
                ``digest`` is empty.
        """
        for content in contents:
            broadcast = Broadcast.from_bytes(content, SharedRows.of(mechanism).shared_rows)
            if broadcast.round <= self.round:
                continue
            if broadcast.before != self.digest:
                raise OutOfStep(
                    f"The broadcast of round {broadcast.round} needs the state before it, got that "
                    f"of round {self.round}: ask for the full model."
                )
            self.take(broadcast, mechanism.for_round(run, broadcast.round))
            if self.digest != broadcast.after:
                self.digest = b""
                raise OutOfStep(
                    f"The step of round {broadcast.round} led to a model that differs from the "
                    "server's: ask for the full model."
                )

    def take(self, broadcast: Broadcast, mechanism: Mechanism) -> None:
        """Take a broadcast's step without comparing digests, as the server does with its own.

        ``mechanism`` is the round's.
        """
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

    def _digest(self, hashes: list[Any]) -> bytes:
        """Hash round, size and the hashes of weights and momentum."""
        head = STATE.pack(self.round, self.weights.size)
        return hashlib.sha256(head + b"".join(part.digest() for part in hashes)).digest()


@final
class Downlink:
    """The server's half: its replica, and the broadcasts of the last rounds.

    Args:
        replica: the model that the run starts from.
        step: how a mean changes the model.
    """

    def __init__(self, replica: Replica, step: ServerStep) -> None:
        """Start a run."""
        self.replica = replica
        self.step = step
        self._log: deque[tuple[int, bytes]] = deque()
        self._log_size = 0
        self._last_dropped = replica.round  # the last round that is not in the log

    def advance(self, kept: Any, mechanism: Mechanism, number: int) -> bytes:
        """Take one round's step from the mean of its kept coordinates, and return its broadcast.

        ``number`` is the round's and exceeds that of the last step. A step that would make the
        model infinite or NaN is refused and not taken.
        """
        mean = np.asarray(kept, dtype=np.float32)
        rows = SharedRows.of(mechanism).shared_rows
        require(mean.shape == (rows,), "shape of the mean", mean.shape, f"({rows},)")
        if not _bounded(mean):
            largest = float(np.abs(mean).max())
            raise InvalidParameter.of("mean of the round", "at most 2^64 in magnitude", largest)
        state = self.replica
        number = check_int(number, "round", state.round + 1, LAST_ROUND)
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
        while self._log_size > LOG_BYTES:
            self._last_dropped, dropped = self._log.popleft()
            self._log_size -= len(dropped)
        return content

    def since(self, round: int) -> list[bytes] | None:
        """Return the broadcasts after ``round``; None if one is missing or the model is smaller."""
        if not self._last_dropped <= round <= self.replica.round:
            return None
        missed = [content for number, content in self._log if number > round]
        if sum(map(len, missed)) >= self.replica.nbytes:
            return None
        return missed


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
