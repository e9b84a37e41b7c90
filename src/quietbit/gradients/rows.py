"""One gradient per sample: a row computed from that sample and the weights, and nothing else.

Idea     the privacy of a sample rests on its affecting one row only. So a row is the gradient of a
         function of a single example, whatever the model and the loss. It is recorded as a graph
         and mapped over samples (`trace.py`); code that cannot be recorded runs on one sample at a
         time. Which of the two ways is used is decided before any data are read.
Symbols  T: the tile, samples of one pass; a lane: a slot of the tile modulo `LANES`.
Source   docs/theory/sample-rows.md.

Rows do not depend on the rest of the batch, to the last bit. Every pass has T slots, and those
without a sample hold zeros, because kernels round differently for other shapes. They also round
differently where a row begins at another alignment, so a sample's place in the data determines its
lane. Every pass has randomness of its own. A sample that raises has NaN in its row, which a gate
counts as zero; the rows of the others do not change.

Not covered: what code that runs on one sample at a time keeps outside of the model and the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_int, require, require_module
from quietbit.gradients.single import CodeGradient
from quietbit.gradients.trace import (
    Loss,
    NotTraceable,
    Slope,
    TracedGradient,
    trainable,
)

__all__ = ["SampleGradients", "sample_gradients"]

Tensor: TypeAlias = Any
Places: TypeAlias = NDArray[np.int64]
Result = TypeVar("Result")

LOGGER = logging.getLogger(__name__)
LANES = 16  # float32 of 64 bytes, the widest alignment that kernels look at
GPU_TILE = 256
CPU_TILE = 256
CPU_LEAST = 64  # the least tile where rows are too long for the cache
CPU_CACHE = 1 << 22  # numbers of a tile that fit the cache
CPU_NUMBERS = 1 << 26  # the most numbers of a tile
GPU_NUMBERS = 1 << 29


@final
class SampleGradients:
    """Per-sample gradients of one model and one loss.

    The constructor tries an example of zeros of the data's shape, and refuses a model or a loss
    without gradients of single samples. Each call uses the model's current weights; its code and
    settings are those at the construction.
    """

    def __init__(
        self, model: Any, loss: Loss, data: tuple[Any, Any], *, tile: int | None = None
    ) -> None:
        """Choose how rows are computed.

        Args:
            model: a ``torch.nn.Module``, called with one sample as a batch of one, in its current
                mode.
            loss: takes outputs and targets of a batch of one and returns one number.
            data: inputs and targets, tensors with one entry per sample; only their shapes are used.
            tile: samples at once; unless given, as many as suit the device and its memory.
        """
        self._torch: Any = require_module("torch", "torch")
        refuse_batch_statistics(model)
        parameters = trainable(model)
        self._shapes = [tuple(part.shape) for part in parameters.values()]
        self._sizes = [part.numel() for part in parameters.values()]
        self._device = next(iter(parameters.values())).device
        self._dimension = sum(self._sizes)
        self._tile = self._tile_size(tile)
        self._check_data(data)
        inputs, targets = (self._empty(part) for part in data)
        self._traced: TracedGradient | None = None
        self._code = CodeGradient(model, loss)
        try:
            self._traced = TracedGradient(model, loss, inputs, targets)
        except NotTraceable as reason:
            LOGGER.debug("quietbit: rows are computed one by one.", exc_info=reason)
            self._code.check(inputs, targets)
        # Fresh memory takes longer to get than to fill.
        self._buffers = [self._new_rows(self._tile) for _ in range(self._passes_at_once())]

    @property
    def way(self) -> str:
        """The way in which rows are computed: ``mapped`` or ``single``."""
        return "single" if self._traced is None else "mapped"

    def pieces(self, data: tuple[Any, Any], places: Places) -> Iterator[tuple[Places, Tensor]]:
        """Yield the samples' rows, a tile at a time, with their indices in ``places``.

        ``places`` are the samples' places in the data. Use the rows before the next iteration: the
        memory is reused.
        """
        self._check_data(data)
        tiles = list(arranged(places, self._tile))
        together = len(self._buffers)
        for start in range(0, len(tiles), together):
            group = zip(tiles[start : start + together], self._buffers, strict=False)
            yield from side_by_side([partial(self._rows, data, places, *job) for job in group])

    def __call__(self, data: tuple[Any, Any]) -> Tensor:
        """Return the rows of all samples of ``data``, float32, in their order."""
        rows = self._new_rows(len(data[0]))
        for chosen, piece in self.pieces(data, np.arange(len(data[0]))):
            rows[int(chosen[0]) : int(chosen[-1]) + 1] = piece
        return rows

    def _new_rows(self, count: int) -> Tensor:
        shape = (count, self._dimension)
        return self._torch.empty(shape, dtype=self._torch.float32, device=self._device)

    def _tile_size(self, tile: int | None) -> int:
        if tile is not None:
            size = check_int(tile, "chunk", 1)
        elif self._device.type == "cuda":
            size = min(GPU_TILE, GPU_NUMBERS // self._dimension)
        else:
            size = max(CPU_LEAST, min(CPU_TILE, CPU_CACHE // self._dimension))
            size = min(size, CPU_NUMBERS // self._dimension)
        if tile is None:
            size = 1 << (max(1, size).bit_length() - 1)  # batches are often of 2^n samples
        if size > LANES:
            size = size // LANES * LANES
        return size

    def _passes_at_once(self) -> int:
        """Return how many tiles are computed side by side, one per thread."""
        traced = self._traced
        if traced is None or traced.draws or self._device.type != "cpu":
            return 1
        threads = int(self._torch.get_num_threads())
        most = int(CPU_NUMBERS // (self._tile * self._dimension))
        return max(1, min(threads, most))

    def _rows(
        self, data: tuple[Any, Any], places: Places, tile: tuple[Places, Places], buffer: Tensor
    ) -> tuple[Places, Tensor]:
        """Return the indices of a tile's samples, and their rows in the buffer."""
        chosen, slots = tile
        inputs, targets = self._filled(data, places[chosen], slots)
        rows = buffer[: len(slots)]
        self._write(inputs, targets, slots, rows)
        return chosen, rows

    def _check_data(self, data: tuple[Any, Any]) -> None:
        for part in data:
            rule = "inputs and targets, both tensors with one entry per sample"
            require(isinstance(part, self._torch.Tensor), "data", type(part).__name__, rule)
            require(part.dim() > 0, "data", "a 0-D tensor", rule)
        inputs, targets = data
        rule = "as many targets as inputs"
        require(len(inputs) == len(targets), "data", f"{len(inputs)} and {len(targets)}", rule)

    def _empty(self, part: Tensor) -> Tensor:
        shape = (self._tile, *part.shape[1:])
        return self._torch.zeros(shape, dtype=part.dtype, device=self._device)

    def _filled(self, data: tuple[Any, Any], places: Places, slots: Places) -> list[Tensor]:
        """Return tiles of inputs and targets, with the samples at these places in these slots."""
        chosen = self._torch.from_numpy(places)
        samples = [part[chosen.to(part.device)].to(self._device) for part in data]
        tiles = [self._empty(part) for part in data]
        where = self._torch.from_numpy(slots).to(self._device)
        for tile, part in zip(tiles, samples, strict=True):
            tile[where] = part.detach()
        return tiles

    def _write(self, inputs: Tensor, targets: Tensor, slots: Places, out: Tensor) -> None:
        """Write the rows of these slots; a sample that raises has NaN in its own row."""
        if self._traced is None:
            for row, slot in enumerate(slots.tolist()):
                slopes = self._tried(inputs[slot : slot + 1], targets[slot : slot + 1])
                self._put(slopes, np.zeros(1, np.int64), out[row : row + 1])
            return
        slopes = self._tried(inputs, targets)
        if slopes is None:
            broken = [slot for slot in slots.tolist() if not self._has_row(inputs, targets, slot)]
            inputs[broken] = 0
            targets[broken] = 0
            slopes = self._tried(inputs, targets)
            self._put(slopes, slots, out)
            out[np.flatnonzero(np.isin(slots, broken))] = float("nan")
            return
        self._put(slopes, slots, out)

    def _has_row(self, inputs: Tensor, targets: Tensor, slot: int) -> bool:
        """Return whether a sample alone in its slot, among zeros, has a gradient."""
        tiles = []
        for part in (inputs, targets):
            tile = self._torch.zeros_like(part)
            tile[slot] = part[slot]
            tiles.append(tile)
        return self._tried(tiles[0], tiles[1]) is not None

    def _tried(self, inputs: Tensor, targets: Tensor) -> Sequence[Slope] | None:
        """Return the gradients of a tile, or of a sample alone; None if there are none."""
        try:
            if self._traced is None:
                return self._code.slopes(inputs, targets)
            return self._traced.slopes(inputs, targets)
        except Exception as error:
            LOGGER.error("quietbit: a sample has no gradient; its row is zero.")
            LOGGER.debug("quietbit: no gradient.", exc_info=error)
            return None

    def _put(self, slopes: Sequence[Slope] | None, slots: Places, out: Tensor) -> None:
        """Write the gradients of these slots, one parameter after the other."""
        if slopes is None:
            out.fill_(float("nan"))
            return
        chosen = self._torch.from_numpy(slots).to(self._device)
        pieces = out.split(self._sizes, dim=1)
        for piece, shape, slope in zip(pieces, self._shapes, slopes, strict=True):
            view = piece.unflatten(1, shape or (1,))
            if isinstance(slope, tuple):
                column, row = slope
                self._torch.mul(column[chosen], row[chosen], out=view)
            else:
                view.copy_(slope[chosen].reshape(view.shape))


def sample_gradients(
    model: Any, loss: Loss, batch: tuple[Any, Any], *, tile: int | None = None
) -> Tensor:
    """Return one row per sample: its unclipped gradient, parameters one after the other.

    Use it with a gate that clips rows itself (`Uplink.send_samples`), where all rows fit memory.
    """
    return SampleGradients(model, loss, batch, tile=tile)(batch)


def arranged(places: Places, tile: int) -> Iterator[tuple[Places, Places]]:
    """Yield for each tile which samples it has, as indices into ``places``, and in which slots.

    A sample's lane, its slot modulo `LANES`, is its place modulo `LANES`, whatever else is drawn.

    >>> [(a.tolist(), b.tolist()) for a, b in arranged(np.array([3, 16, 17, 32]), 32)]
    [([1, 2, 0, 3], [0, 1, 3, 16])]
    """
    lanes = min(LANES, tile)
    if len(places) and places[0] % lanes == 0 and bool((np.diff(places) == 1).all()):
        for start in range(0, len(places), tile):  # a shortcut with the result of the code below
            slots = np.arange(min(tile, len(places) - start))
            yield start + slots, slots
        return
    lane = places % lanes
    order = np.argsort(lane, kind="stable")
    starts = np.searchsorted(lane[order], np.arange(lanes))
    rank = np.arange(len(places)) - starts[lane[order]]  # of a sample among those of its lane
    depth = tile // lanes
    slot = rank % depth * lanes + lane[order]
    for number in range(int(rank.max(initial=-1)) // depth + 1):
        inside = np.flatnonzero(rank // depth == number)
        inside = inside[np.argsort(slot[inside])]
        yield order[inside], slot[inside]


def side_by_side(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return what the jobs return, each computed by one thread of torch.

    Where several threads share an operation, the last numbers of a thread's part are computed by
    other instructions, and rounded differently: a row would depend on its slot.
    """
    torch: Any = require_module("torch", "torch")
    threads = torch.get_num_threads()

    def alone(job: Callable[[], Result]) -> Result:
        torch.set_num_threads(1)
        try:
            return job()
        finally:
            torch.set_num_threads(threads)

    if len(jobs) == 1:
        return [alone(jobs[0])]
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(alone, jobs))


def refuse_batch_statistics(model: Any) -> None:
    """Refuse layers that record statistics of a batch, by their type."""
    torch: Any = require_module("torch", "torch")
    for name, layer in model.named_modules():
        batch = isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        instance = isinstance(layer, torch.nn.modules.instancenorm._InstanceNorm)
        if batch or (instance and layer.track_running_stats):
            rule = "one without batch statistics"
            remedy = "train quietbit.group_norm(model) instead"
            raise InvalidParameter.of(f"layer {name!r}", rule, type(layer).__name__, remedy)
