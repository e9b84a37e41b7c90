"""The uplink: a client turns an update into bytes, a server turns payloads into a mean.

Idea     both ends are built from the same mechanism and share only the payload. Sending is one
         pass: the structure is read as one vector, the mechanism clips it and writes its body, the
         header completes it. Mechanisms decode in clips, and the mean is multiplied by the clip,
         which is public and bound by the header. Receiving never unpacks payloads into floats: a
         payload is checked completely, and then added to one integer per coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias, final, get_args

from attrs import field, frozen

from quietbit._typing import FloatVector
from quietbit.arrays import Structure, dtype_name, flatten, restore
from quietbit.errors import InvalidParameter, InvalidPayload, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, check_rng, secure_rng
from quietbit.kernel.select import default_kernel, select
from quietbit.mechanism.abilities import Batches, SampleGradients
from quietbit.mechanism.ball import check_clip
from quietbit.mechanism.base import (
    Accumulator,
    Answers,
    Batch,
    Body,
    Mechanism,
    Parts,
    check_mechanism,
)
from quietbit.target import Unit
from quietbit.wire.payload import Header, build, read_body

__all__ = [
    "Aggregator",
    "OnError",
    "Received",
    "Uplink",
    "in_units",
]

OnError: TypeAlias = Literal["raise", "skip"]
MAX_PAYLOADS = 2**24
SAMPLE_DTYPES = {"float32", "float64"}  # of updates where samples are protected


@final
@frozen(eq=False)
class Received:
    """A mean, the number of payloads in it, and the number refused."""

    mean: Any
    count: int
    refused: int


@final
@frozen(eq=False, init=False)
class Uplink:
    """Both halves of the path from clients to server, for one mechanism at one clip.

    ``clip`` is the largest norm of an update; a longer one is scaled down to it.

    ``like`` is an update of the structure to expect and to rebuild (a dict, list or tuple of numpy
    or torch arrays, nested at will; the model's parameters will do); only shapes and types are
    kept. Without it any structure with the right number of entries is sent, and a flat float64
    vector is received. ``threads`` is the number of threads and ``kernel`` the name of the
    implementation; neither changes a byte. ``max_payloads`` bounds the payloads of one mean.
    ``unit`` is the privacy unit: where it is a sample, updates in half precision are refused,
    because the cost to a sample (`privacy.cost.sample_share`) counts the roundings of float32, and
    two neighbouring means rounded to 11 or 8 bits can lie much further apart.
    """

    mechanism: Mechanism
    clip: float
    threads: int
    max_payloads: int
    kernel: str | None
    unit: Unit
    header: Header = field(repr=False)
    structure: Structure = field(repr=False)
    _like: Structure | None = field(repr=False)
    _kernel: Kernel = field(repr=False, alias="code")

    def __init__(
        self,
        mechanism: Mechanism,
        like: Any = None,
        clip: float = 1.0,
        threads: int = 1,
        max_payloads: int = MAX_PAYLOADS,
        kernel: str | None = None,
        unit: Unit = Unit.CLIENT,
    ) -> None:
        """Refuse what is not a mechanism, and a ``like`` whose size is not the mechanism's."""
        dimension = check_mechanism(mechanism).ball.dimension
        structure = Structure.flat(dimension)
        expected = None
        if like is not None:
            structure = expected = Structure.of(like)
            rule = f"{dimension}, the mechanism's dimension"
            require(
                structure.size == dimension, "number of entries of `like`", structure.size, rule
            )
        thread_count = check_int(threads, "threads", 1, 1024)
        if kernel:
            code = select(kernel, threads=thread_count)
        else:
            code = default_kernel(threads=thread_count)
        scale = check_clip(clip)
        self.__attrs_init__(
            mechanism,
            scale,
            thread_count,
            check_int(max_payloads, "max_payloads", 1, 2**31 - 1),
            kernel,
            Unit(unit),
            Header.of(mechanism, scale),
            structure,
            expected,
            code,
        )

    def send(self, update: Any, rng: RandomBits | None = None) -> bytes:
        """Clip, randomise, pack and frame an update.

        The update's arrays are float16, bfloat16, float32 or float64 and are clipped together,
        under one norm. ``rng`` is the operating system's by default. Refused before a random bit is
        drawn: a NaN or infinite entry, a wrong number of entries, a structure other than ``like``.
        Tensors on a GPU are clipped and randomised there; only the payload leaves it.
        """
        parts, on_gpu = self._parts(update)
        kernel = _device_kernel() if on_gpu else self._kernel
        source = secure_rng() if rng is None else rng
        check_rng(source)
        write = partial(self.mechanism.write, parts, self.clip, source, kernel)
        return build(self.header, write)

    def send_samples(self, gradients: Iterable[Any], rng: RandomBits | None = None) -> bytes:
        """Randomise, pack and frame the mean of the gradients of a client's samples.

        For sample-level privacy where only some rotated coordinates are kept. Every gradient has
        the structure of an update and is projected and clipped separately; the cost of the release
        is that of ``mechanism.privacy(adjacency, samples)`` with their number. Mechanisms that clip
        a mean are refused.
        """
        gradient_parts = []
        for gradient in gradients:
            parts, on_gpu = self._parts(gradient)
            require(not on_gpu, "gradients", "tensors on a GPU", "arrays or tensors on the host")
            gradient_parts.append(parts)
        source = secure_rng() if rng is None else rng
        check_rng(source)
        write_samples = SampleGradients.of(self.mechanism).write_samples
        write = partial(write_samples, gradient_parts, self.clip, source, self._kernel)
        return build(self.header, write)

    def batch(self, rng: RandomBits) -> Batch:
        """Return an empty batch that clips gradients as they arrive; for mechanisms of batches."""
        return Batches.of(self.mechanism).begin(self.clip, rng, self._kernel)

    def send_batch(self, total: Batch) -> bytes:
        """Randomise, pack and frame the sum of a batch."""
        return build(self.header, total.write)

    def _parts(self, update: Any) -> tuple[Parts, bool]:
        """Return the arrays of an update, and whether they are on a GPU; check the structure."""
        parts, on_gpu = flatten(update, self._like)
        size = sum(math.prod(part.shape) for part in parts)
        expected = self.structure.size
        if size != expected:
            raise InvalidParameter.of("number of entries of the update", f"{expected}", size)
        if self.unit is Unit.SAMPLE:
            precise = {dtype_name(part) for part in parts} <= SAMPLE_DTYPES
            rule = "float32 or float64 where samples are protected"
            require(precise, "type of the update", "half precision", rule)
        return parts, on_gpu

    def receive(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Any:
        """Return the mean of the updates in a stream of payloads, read once.

        Each is bytes or a buffer. A bad one raises `InvalidPayload`, or is left out with
        ``on_error="skip"``; a stream without a valid payload is refused.
        """
        return self.collect(payloads, on_error).mean

    def collect(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Received:
        """Return what `receive` does, with the numbers of payloads in the mean and refused."""
        aggregator = self.aggregator()
        aggregator.add_all(payloads, on_error)
        return Received(aggregator.mean(), aggregator.count, aggregator.refused)

    def aggregator(self) -> Aggregator:
        """Return an empty mean to which payloads are added as they arrive."""
        return Aggregator(self)


@final
class Aggregator:
    """A streaming mean: `add` payloads as they arrive, and ask for `mean` when enough have.

    Memory is one integer per coordinate (32 bits for one-bit mechanisms, else 64), and up to
    fifteen waiting one-bit payloads. Payloads carry neither a client's name nor a round: the caller
    must add at most one payload per client. Not thread-safe.
    """

    __slots__ = ("_sums", "_uplink", "_waiting", "count", "refused")

    def __init__(self, uplink: Uplink) -> None:
        """Start empty; ``count`` payloads are in the mean, and ``refused`` were not valid."""
        self._uplink = uplink
        self._sums = uplink.mechanism.accumulator(uplink._kernel, uplink.max_payloads)
        self._waiting: list[Body] = []
        self.count = 0
        self.refused = 0

    def add(self, payload: Any) -> None:
        """Check one payload and add it; a bad one raises `InvalidPayload` and changes no mean."""
        limit = self._uplink.max_payloads
        require(self.count < limit, "number of payloads", self.count + 1, f"at most {limit}")
        try:
            body = read_body(payload, self._uplink.header)
            self._sums.check(body)
        except InvalidPayload:
            self.refused += 1
            raise
        self._waiting.append(body)
        self.count += 1
        if len(self._waiting) >= self._sums.group:
            self._settle()

    def add_all(self, payloads: Iterable[Any], on_error: OnError = "raise") -> None:
        """Add a stream of payloads; a bad one raises, or is skipped and counted as refused."""
        choices = get_args(OnError)
        require(on_error in choices, "on_error", on_error, "one of " + ", ".join(choices))
        single = isinstance(payloads, bytes | bytearray | memoryview | str)
        iterable = not single and isinstance(payloads, Iterable)
        kind = type(payloads).__name__
        require(iterable, "payloads", kind, "an iterable of payloads", "pass one payload as a list")
        for index, payload in enumerate(payloads):
            try:
                self.add(payload)
            except InvalidPayload as error:
                if on_error == "raise":
                    message = f"Payload {index} of the stream is not valid: {error}"
                    raise type(error)(message) from error

    def mean(self) -> Any:
        """Return the mean of all payloads in the structure of updates; refuse if there are none."""
        reader = self._settled().reader(self.count)
        return restore(
            self._uplink.structure, lambda start, stop: self._in_units(reader(start, stop))
        )

    def kept(self) -> FloatVector:
        """Return the mean on the rows that all clients of the round keep, for a `Downlink`."""
        return self._in_units(self._settled().kept(self.count))

    def answers(self) -> Answers:
        """Return what scouts answered about the clip."""
        return self._settled().answers(self.count)

    def _settle(self) -> None:
        """Add the payloads that wait."""
        if self._waiting:
            self._sums.add(self._waiting)
            self._waiting = []

    def _settled(self) -> Accumulator:
        """Return the sums of all payloads so far; refuse if there are none."""
        if not self.count:
            raise InvalidPayload(
                f"A mean needs at least one valid payload, got none ({self.refused} were refused)."
            )
        self._settle()
        return self._sums

    def _in_units(self, mean: FloatVector) -> FloatVector:
        """Return a mean in units of updates, from one in clips."""
        uplink = self._uplink
        return mean if uplink.clip == 1.0 else in_units(mean, uplink.mechanism, uplink.clip)


def in_units(mean: FloatVector, mechanism: Mechanism, clip: float) -> FloatVector:
    """Return a mean in units of updates, from one in clips; bit for bit at clip 1."""
    return mean if mechanism.unitless else mean * clip


@lru_cache(maxsize=1)
def _device_kernel() -> Kernel:
    """Return the kernel for updates on a GPU."""
    return select("triton")
