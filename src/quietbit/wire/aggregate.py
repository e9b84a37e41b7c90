"""A streaming mean of payloads that keeps one integer per coordinate.

Idea     a payload is checked completely before anything is added, and then counts as one: nothing a client sends is a
         weight. One-bit payloads wait until fifteen can be added at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, final, get_args

from attrs import frozen

from quietbit._typing import FloatVector
from quietbit.arrays import Structure, restore
from quietbit.errors import InvalidParameter, InvalidPayload, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.mechanism.base import Accumulator, Answers, Body, Mechanism
from quietbit.wire.payload import Header, read_body

__all__ = ["MAX_PAYLOADS", "Aggregator", "OnError", "Received"]

OnError: TypeAlias = Literal["raise", "skip"]
MAX_PAYLOADS = 2**24


@final
@frozen(eq=False)
class Received:
    """A mean, the number of payloads in it, and the number refused."""

    mean: Any
    count: int
    refused: int


@final
class Aggregator:
    """A streaming mean: `add` payloads as they arrive, and ask for `mean` when enough have.

    ``max_payloads`` bounds the number of payloads, which fixes the resolution of sums of more than one bit. Memory is
    one integer per coordinate (32 bits for one-bit mechanisms, else 64) and up to fifteen waiting one-bit payloads.
    Payloads carry neither a client's name nor a round: keeping one payload per client is the caller's task. Not
    thread-safe.
    """

    __slots__ = ("_accumulator", "_count", "_header", "_max_payloads", "_refused", "_structure", "_threads", "_waiting")

    def __init__(
        self,
        mechanism: Mechanism,
        structure: Structure,
        kernel: Kernel,
        *,
        threads: int = 1,
        max_payloads: int = MAX_PAYLOADS,
        header: Header | None = None,
    ) -> None:
        """Start empty; `Uplink.aggregator` passes the arguments, among them the mechanism's header."""
        self._header = Header.of(mechanism) if header is None else header
        self._structure, self._threads = structure, threads
        self._max_payloads = check_int(max_payloads, "max_payloads", 1, 2**31 - 1)
        self._accumulator: Accumulator = mechanism.accumulator(kernel, self._max_payloads)
        self._waiting: list[Body] = []
        self._count = self._refused = 0

    @property
    def count(self) -> int:
        """The number of payloads in the mean."""
        return self._count

    @property
    def refused(self) -> int:
        """The number of invalid payloads."""
        return self._refused

    def add(self, payload: Any) -> None:
        """Check one payload and add it; a bad one raises `InvalidPayload` and leaves the mean unchanged.

        ``payload`` is bytes, a buffer, a path, or a file open for reading bytes.
        """
        require(
            self._count < self._max_payloads, "number of payloads", self._count + 1, f"at most {self._max_payloads}"
        )
        try:
            body = read_body(payload, self._header, self._threads)
            self._accumulator.check(body)
        except InvalidPayload:
            self._refused += 1
            raise
        self._waiting.append(body)
        self._count += 1
        if len(self._waiting) >= self._accumulator.group:
            self._settle()

    def add_all(self, payloads: Iterable[Any], on_error: OnError = "raise") -> None:
        """Add a stream of payloads; ``on_error`` decides whether a bad one is skipped and counted, or raises."""
        choices = get_args(OnError)
        require(on_error in choices, "on_error", on_error, "one of " + ", ".join(choices))
        if isinstance(payloads, bytes | bytearray | memoryview | str) or not isinstance(payloads, Iterable):
            found = type(payloads).__name__
            raise InvalidParameter(f"payloads: expected a list or another iterable of payloads, got {found}.")
        for place, payload in enumerate(payloads):
            try:
                self.add(payload)
            except InvalidPayload as error:
                if on_error == "raise":
                    raise type(error)(f"Payload {place} of the stream is not valid: {error}") from error

    def mean(self) -> Any:
        """Return the mean of the payloads so far, in the structure of the updates; refuse if there are none."""
        return restore(self._structure, self._settled().reader(self._count))

    def kept(self) -> FloatVector:
        """Return the mean on the rows that all clients of the round keep, for a broadcast (`Downlink`)."""
        return self._settled().kept(self._count)

    def answers(self) -> Answers | None:
        """Return what scouts answered about the clip; None without answers."""
        return self._settled().answers(self._count) if self._count else None

    def received(self) -> Received:
        """Return the mean with its counts."""
        return Received(self.mean(), self._count, self._refused)

    def _settled(self) -> Accumulator:
        """Return the sums of all payloads so far; refuse if there are none."""
        if self._count == 0:
            raise InvalidPayload(f"A mean needs at least one valid payload, got none ({self._refused} were refused).")
        self._settle()
        return self._accumulator

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._accumulator.add(waiting)
