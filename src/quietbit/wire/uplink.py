"""The uplink: a client turns an update into bytes, a server turns payloads into a mean.

Idea     both ends are built from the same mechanism and share only the payload. Sending is one pass: the structure is
         read as one vector, the mechanism writes its body, the header completes it. Receiving never unpacks payloads
         into floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, final

from attrs import field, frozen

from quietbit.arrays import Structure, dtype_name, flatten
from quietbit.errors import InvalidParameter, check_int, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.rng import RandomBits, check_rng, device_rng, secure_rng
from quietbit.kernel.select import default_kernel, select
from quietbit.mechanism.base import Batch, Mechanism, Parts, check_mechanism
from quietbit.target import Unit
from quietbit.wire.aggregate import MAX_PAYLOADS, Aggregator, OnError, Received
from quietbit.wire.payload import Header, build

__all__ = ["Uplink"]


@final
@frozen(eq=False, init=False)
class Uplink:
    """Both halves of the path from clients to server, for one mechanism.

    ``like`` is an update of the structure to expect and to rebuild (a dict, list or tuple of numpy or torch arrays,
    nested at will; the model's parameters will do); only shapes and types are kept. Without it any structure with the
    right number of entries is sent, and a flat float64 vector is received. ``threads`` is the number of threads and
    ``kernel`` the name of the implementation; neither changes a byte. ``max_payloads`` bounds the payloads of one mean.
    ``unit`` is the privacy unit: where it is a sample, updates in half precision are refused, because the cost to a
    sample (`privacy/sensitivity.py`) counts the roundings of float32, and two neighbouring means rounded to 11 or 8
    bits can lie much further apart.
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
        dimension = check_mechanism(mechanism).domain.dimension
        given = None if like is None else Structure.of(like)
        structure = Structure.flat(dimension) if given is None else given
        require(structure.size == dimension, "number of entries of `like`", structure.size, f"{dimension}")
        workers, most = check_int(threads, "threads", 1, 1024), check_int(max_payloads, "max_payloads", 1, 2**31 - 1)
        code = select(kernel, threads=workers) if kernel else default_kernel(threads=workers)
        self.__attrs_init__(mechanism, workers, most, kernel, Unit(unit), Header.of(mechanism), structure, given, code)

    def send(self, update: Any, rng: RandomBits | None = None) -> bytes:
        """Clip, randomise, pack and frame an update.

        The update's arrays are float16, bfloat16, float32 or float64 and are clipped together, under one norm. ``rng``
        is the operating system's by default. Refused before a random bit is drawn: a NaN or infinite entry, a wrong
        number of entries, a structure other than ``like``. Tensors on a GPU are clipped and randomised there, with bits
        that the GPU expands from a key of the operating system's; only the payload leaves it.
        """
        parts, there = self._parts(update)
        kernel = _device_kernel() if there else self._kernel
        chosen = rng if rng is not None else device_rng() if there else secure_rng()
        check_rng(chosen)
        return build(self.header, partial(self.mechanism.write, parts, chosen, kernel), self.threads)

    def send_samples(self, gradients: Iterable[Any], rng: RandomBits | None = None) -> bytes:
        """Randomise, pack and frame the mean of per-sample gradients, for sample-level privacy with kept coordinates.

        Every gradient has the structure of an update and is projected and clipped separately; price the release with
        their number. Refused for mechanisms that clip means.
        """
        found = [self._parts(one) for one in gradients]
        here = not any(there for _, there in found)
        require(here, "gradients", "tensors on a GPU", "arrays or tensors on the host")
        parts, chosen = [part for part, _ in found], rng if rng is not None else secure_rng()
        check_rng(chosen)
        return build(self.header, partial(self.mechanism.write_samples, parts, chosen, self._kernel), self.threads)

    def batch(self, rng: RandomBits) -> Batch:
        """Return an empty batch that clips gradients as they arrive; for a mechanism of batches."""
        return self.mechanism.begin(rng, self._kernel)

    def send_batch(self, total: Batch) -> bytes:
        """Randomise, pack and frame the sum of a batch."""
        return build(self.header, total.write, self.threads)

    def _parts(self, update: Any) -> tuple[Parts, bool]:
        """Return the arrays of an update, and whether they are on a GPU; refuse another structure or size."""
        parts, there = flatten(update, self._like)
        size = sum(math.prod(part.shape) for part in parts)
        if size != self.structure.size:
            raise InvalidParameter.of("number of entries of the update", f"{self.structure.size}", size)
        if self.unit is Unit.SAMPLE and not {dtype_name(part) for part in parts} <= {"float32", "float64"}:
            rule = "float32 or float64 where samples are protected"
            raise InvalidParameter.of("type of the update", rule, "half precision")
        return parts, there

    def receive(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Any:
        """Return the mean of the updates in a stream of payloads, read once.

        Each is bytes, a buffer, a path, or a file open for reading bytes. A bad one raises `InvalidPayload`, or is left
        out with ``on_error="skip"``; a stream without a valid payload is refused.
        """
        return self.collect(payloads, on_error).mean

    def collect(self, payloads: Iterable[Any], on_error: OnError = "raise") -> Received:
        """Return the mean as `receive` does, with the numbers of payloads in it and of those refused."""
        aggregator = self.aggregator()
        aggregator.add_all(payloads, on_error)
        return aggregator.received()

    def aggregator(self) -> Aggregator:
        """Return an empty mean to which payloads are added as they arrive."""
        return Aggregator(
            self.mechanism,
            self.structure,
            self._kernel,
            threads=self.threads,
            max_payloads=self.max_payloads,
            header=self.header,
        )


@lru_cache(maxsize=1)
def _device_kernel() -> Kernel:
    """Return the kernel for updates on a GPU."""
    return select("triton")
