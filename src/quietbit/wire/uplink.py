"""The uplink: a client turns an update into bytes, a server turns payloads into a mean.

Idea     both ends are built from the same mechanism and share only the payload. Sending is one
         pass: the structure is read as one vector, the mechanism writes its body, the header
         completes it. Receiving never unpacks payloads into floats: a payload is checked
         completely, and then added to one integer per coordinate. A client with ten times the
         examples may count ten times. Its payload does not say so: the number is public, named by
         the owner's policy, and the server multiplies what it decodes, which costs no more privacy.
         Integer sums have no weights, so payloads of equal weight share a sum, and weights are
         rounded to a few.
Symbols  n_c: examples of a client; N: ``most``, beyond which weights do not grow, so that no claim
         moves a mean without bound; w_c = min(n_c, N) / N, rounded to quarters of a power of two,
         from 2^-10 to 1. (sum w)^2 / sum w^2: the effective cohort, whose plain mean is as noisy
         (Kish 1965).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.arrays import Structure, dtype_name, flatten, restore
from quietbit.errors import InvalidParameter, InvalidPayload, check_int, refuse_payload, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, check_rng, device_rng, secure_rng
from quietbit.kernel.select import default_kernel, select
from quietbit.mechanism.abilities import Batches, SampleGradients
from quietbit.mechanism.base import (
    Accumulator,
    Answers,
    Batch,
    Body,
    Mechanism,
    Parts,
    answers_accumulator,
    check_mechanism,
    rows_accumulator,
)
from quietbit.target import Unit
from quietbit.wire.payload import Header, build, read_body

__all__ = [
    "EXAMPLES",
    "Aggregator",
    "OnError",
    "Received",
    "Uplink",
    "effective",
    "pooled",
    "weight_of",
]

OnError: TypeAlias = Literal["raise", "skip"]
MAX_PAYLOADS = 2**24
EXAMPLES = (
    "num-examples"  # the metric by which Flower's apps report their number, and policies name it
)
STEPS = 4  # weights per power of two, and the least power
SMALLEST = -10


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
    """Both halves of the path from clients to server, for one mechanism.

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
        threads: int = 1,
        max_payloads: int = MAX_PAYLOADS,
        kernel: str | None = None,
        unit: Unit = Unit.CLIENT,
    ) -> None:
        """Refuse anything but a mechanism, and a structure of another dimension."""
        dimension = check_mechanism(mechanism).ball.dimension
        if like is None:
            given = None
        else:
            given = Structure.of(like)
        if given is None:
            structure = Structure.flat(dimension)
        else:
            structure = given
        require(
            structure.size == dimension,
            "number of entries of `like`",
            structure.size,
            f"{dimension}",
        )
        workers = check_int(threads, "threads", 1, 1024)
        most = check_int(max_payloads, "max_payloads", 1, 2**31 - 1)
        if kernel:
            code = select(kernel, threads=workers)
        else:
            code = default_kernel(threads=workers)
        self.__attrs_init__(
            mechanism,
            workers,
            most,
            kernel,
            Unit(unit),
            Header.of(mechanism),
            structure,
            given,
            code,
        )

    def send(self, update: Any, rng: RandomBits | None = None) -> bytes:
        """Clip, randomise, pack and frame an update.

        The update's arrays are float16, bfloat16, float32 or float64 and are clipped together,
        under one norm. ``rng`` is the operating system's by default. Refused before a random bit is
        drawn: a NaN or infinite entry, a wrong number of entries, a structure other than ``like``.
        Tensors on a GPU are clipped and randomised there, with bits that the GPU expands from a key
        of the operating system's; only the payload leaves it.
        """
        parts, there = self._parts(update)
        if there:
            kernel = _device_kernel()
        else:
            kernel = self._kernel
        chosen = rng if rng is not None else device_rng() if there else secure_rng()
        check_rng(chosen)
        return build(
            self.header, partial(self.mechanism.write, parts, chosen, kernel), self.threads
        )

    def send_samples(self, gradients: Iterable[Any], rng: RandomBits | None = None) -> bytes:
        """Randomise, pack and frame the mean of per-sample gradients, for sample-level privacy with kept coordinates.

        Every gradient has the structure of an update and is projected and clipped separately; price
        the release with their number. Refused for mechanisms that clip means.
        """
        found = [self._parts(one) for one in gradients]
        here = not any(there for _, there in found)
        require(here, "gradients", "tensors on a GPU", "arrays or tensors on the host")
        parts = [part for part, _ in found]
        chosen = rng if rng is not None else secure_rng()
        check_rng(chosen)
        write = SampleGradients.of(self.mechanism).write_samples
        return build(self.header, partial(write, parts, chosen, self._kernel), self.threads)

    def batch(self, rng: RandomBits) -> Batch:
        """Return an empty batch that clips gradients as they arrive; for a mechanism of batches."""
        return Batches.of(self.mechanism).begin(rng, self._kernel)

    def send_batch(self, total: Batch) -> bytes:
        """Randomise, pack and frame the sum of a batch."""
        return build(self.header, total.write, self.threads)

    def _parts(self, update: Any) -> tuple[Parts, bool]:
        """Return the arrays of an update, and whether they are on a GPU; refuse another structure or size."""
        parts, there = flatten(update, self._like)
        size = sum(math.prod(part.shape) for part in parts)
        if size != self.structure.size:
            raise InvalidParameter.of(
                "number of entries of the update", f"{self.structure.size}", size
            )
        if self.unit is Unit.SAMPLE and not {dtype_name(part) for part in parts} <= {
            "float32",
            "float64",
        }:
            rule = "float32 or float64 where samples are protected"
            raise InvalidParameter.of("type of the update", rule, "half precision")
        return parts, there

    def receive(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Any:
        """Return the mean of the updates in a stream of payloads, read once.

        Each is bytes, a buffer, a path, or a file open for reading bytes. A bad one raises
        `InvalidPayload`, or is left out with ``on_error="skip"``; a stream without a valid payload
        is refused.
        """
        return self.collect(payloads, on_error).mean

    def collect(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Received:
        """Return the mean as `receive` does, with the numbers of payloads in it and of those refused."""
        found = self.aggregator()
        found.add_all(payloads, on_error)
        return Received(found.mean(), found.count, found.refused)

    def aggregator(self) -> Aggregator:
        """Return an empty mean to which payloads are added as they arrive."""
        return Aggregator(self)


@define(eq=False)
class _Sum:
    """The sum of the payloads of one weight; they wait until a group of them can be added at once."""

    accumulator: Accumulator
    count: int = 0
    waiting: list[Body] = field(factory=list)

    def settled(self) -> Accumulator:
        """Return the sum of all payloads so far."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.accumulator.add(waiting)
        return self.accumulator


@final
class Aggregator:
    """A streaming mean: `add` payloads as they arrive, and ask for `mean` when enough have.

    Memory is one integer per coordinate (32 bits for one-bit mechanisms, else 64) for every weight
    that occurs, and up to fifteen waiting one-bit payloads. Payloads carry neither a client's name
    nor a round: keeping one payload per client is the caller's task. Not thread-safe.
    """

    __slots__ = ("_sums", "_uplink", "count", "refused")

    def __init__(self, uplink: Uplink) -> None:
        """Start empty; ``count`` is the number of payloads in the mean, ``refused`` that of invalid ones."""
        self._uplink = uplink
        self._sums = dict[float, _Sum]()
        self.count = self.refused = 0

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return sum(weight * part.count for weight, part in self._sums.items())

    def add(self, payload: Any, weight: float = 1.0) -> None:
        """Check one payload and add it; a bad one raises `InvalidPayload` and leaves the mean unchanged.

        ``payload`` is bytes, a buffer, a path, or a file open for reading bytes.
        """
        uplink = self._uplink
        most = self._uplink.max_payloads
        require(self.count < most, "number of payloads", self.count + 1, f"at most {most}")
        part = self._sums.get(weight)
        if part is None:
            part = self._sums[weight] = _Sum(uplink.mechanism.accumulator(uplink._kernel, most))
        try:
            body = read_body(payload, uplink.header, uplink.threads)
            part.accumulator.check(body)
        except InvalidPayload:
            self.refused += 1
            raise
        part.waiting.append(body)
        part.count += 1
        self.count += 1
        if len(part.waiting) >= part.accumulator.group:
            part.settled()

    def add_all(self, payloads: Iterable[Any], on_error: OnError = "raise") -> None:
        """Add a stream of payloads; ``on_error`` decides whether a bad one is skipped and counted, or raises."""
        choices = get_args(OnError)
        require(on_error in choices, "on_error", on_error, "one of " + ", ".join(choices))
        if isinstance(payloads, bytes | bytearray | memoryview | str) or not isinstance(
            payloads, Iterable
        ):
            found = type(payloads).__name__
            raise InvalidParameter(
                f"payloads: expected a list or another iterable of payloads, got {found}."
            )
        for place, payload in enumerate(payloads):
            try:
                self.add(payload)
            except InvalidPayload as error:
                if on_error == "raise":
                    raise type(error)(
                        f"Payload {place} of the stream is not valid: {error}"
                    ) from error

    def mean(self) -> Any:
        """Return the mean of the payloads so far, in the structure of the updates; refuse if there are none."""
        readers = [(share, part.settled().reader(part.count)) for share, part in self._shares()]
        if len(readers) == 1:
            return restore(self._uplink.structure, readers[0][1])

        def read(start: int, stop: int) -> FloatVector:
            return np.asarray(sum(share * reader(start, stop) for share, reader in readers))

        return restore(self._uplink.structure, read)

    def kept(self) -> FloatVector:
        """Return the mean on the rows that all clients of the round keep, for a broadcast (`Downlink`)."""
        means = [
            (share, rows_accumulator(part.settled()).kept(part.count))
            for share, part in self._shares()
        ]
        if len(means) == 1:
            return means[0][1]
        return np.asarray(sum(share * mean for share, mean in means))

    def answers(self) -> Answers | None:
        """Return what scouts, who all weigh alike, answered about the clip; None without answers."""
        for part in self._sums.values():
            if part.count:
                return answers_accumulator(part.settled()).answers(part.count)
        return None

    def _shares(self) -> list[tuple[float, _Sum]]:
        """Return every sum with its share of the mean; refuse if there are none."""
        if not self.count:
            raise InvalidPayload(
                f"A mean needs at least one valid payload, got none ({self.refused} were refused)."
            )
        total = self.weight
        return [
            (weight * part.count / total, part) for weight, part in self._sums.items() if part.count
        ]


def weight_of(examples: Any, most: int | None) -> float:
    """Return the weight of a client's release; 1 where all weigh alike. A number below 1, or a missing one, is refused.

    >>> [round(weight_of(n, 1000), 3) for n in (1, 250, 900, 1000, 10**9)], weight_of(None, None)
    ([0.001, 0.25, 0.841, 1.0, 1.0], 1.0)
    """
    if most is None:
        return 1.0
    if not isinstance(examples, int | float) or not 1 <= examples < math.inf:
        refuse_payload(
            "number of examples",
            "told, and at least 1, where releases are weighted by it",
            examples,
        )
    return float(
        2.0 ** (max(STEPS * SMALLEST, round(STEPS * math.log2(min(examples, most) / most))) / STEPS)
    )


def effective(weights: Iterable[float]) -> float:
    """Return the effective cohort: the number of equal weights whose mean is as noisy."""
    known = np.fromiter(weights, dtype=np.float64)
    if known.size:
        return float(known.sum() ** 2 / np.square(known).sum())
    return 0.0


def pooled(means: Iterable[Aggregator]) -> Any:
    """Return the mean over all payloads of several means, for example of rounds with other rows; None without any."""
    known = [mean for mean in means if mean.count]
    total = sum(mean.weight for mean in known)
    if len(known) == 1:
        return known[0].mean()
    if known:
        return sum(mean.weight / total * mean.mean() for mean in known)
    return None


@lru_cache(maxsize=1)
def _device_kernel() -> Kernel:
    """Return the kernel for updates on a GPU."""
    return select("triton")
