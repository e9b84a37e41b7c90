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
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import check_int, require, require_module
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
_ALONE = threading.Lock()  # the number of torch's threads is the process's
LEAST_TILE = 64
MOST_TILE = 512
CPU_CACHE = 1 << 22  # numbers that fit the cache
GPU_NUMBERS = 1 << 29  # the most numbers of a pass


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
        kind = self._device.type
        rule = "cpu or cuda: a pass has the generators of these for itself"
        require(kind in ("cpu", "cuda"), "device of the model", kind, rule)
        self._dimension = sum(self._sizes)
        self._check_data(data)
        self._code = CodeGradient(model, loss)
        self._traced: TracedGradient | None = None
        self._tile = LANES
        try:
            traced = TracedGradient(model, loss, *self._empty(data, 1, each=True))
            self._tile = self._tile_size(tile, traced.numbers)
            traced.spread(*self._empty(data, self._tile))
            self._traced = traced
        except NotTraceable as reason:
            LOGGER.debug("quietbit: rows are computed one by one.", exc_info=reason)
            self._code.check(*self._empty(data, 1))
        most = (GPU_NUMBERS if self._device.type == "cuda" else CPU_CACHE) // self._dimension
        # Fresh memory takes longer to get than to fill.
        self._buffer = self._new_rows(max(1, min(self._tile, most)))

    @property
    def way(self) -> str:
        """The way in which rows are computed: ``mapped`` or ``single``."""
        return "single" if self._traced is None else "mapped"

    def pieces(self, data: tuple[Any, Any], places: Places) -> Iterator[tuple[Places, Tensor]]:
        """Yield the samples' rows, some at a time, with their indices in ``places``.

        ``places`` are the samples' places in the data. Use the rows before the next iteration: the
        memory is reused.
        """
        self._check_data(data)
        if self._traced is None:
            yield from self._one_by_one(data, places)
            return
        tiles = list(arranged(places, self._tile))
        together = self._passes_at_once(self._traced)
        for start in range(0, len(tiles), together):
            group = tiles[start : start + together]
            jobs = [partial(self._passed, self._traced, data, places, *tile) for tile in group]
            for (chosen, slots), (slopes, broken) in zip(group, side_by_side(jobs), strict=True):
                for first in range(0, len(slots), len(self._buffer)):
                    some = slice(first, first + len(self._buffer))
                    rows = self._put(slopes, slots[some])
                    if broken:
                        rows[np.flatnonzero(np.isin(slots[some], broken))] = float("nan")
                    yield chosen[some], rows

    def _one_by_one(self, data: tuple[Any, Any], places: Places) -> Iterator[tuple[Places, Tensor]]:
        for index, place in enumerate(places.tolist()):
            sample = [part[place : place + 1].to(self._device) for part in data]
            slopes = self._tried(partial(self._code.slopes, *sample))
            yield np.array([index]), self._put(slopes, np.zeros(1, np.int64))

    def __call__(self, data: tuple[Any, Any]) -> Tensor:
        """Return the rows of all samples of ``data``, float32, in their order."""
        rows = self._new_rows(len(data[0]))
        for chosen, piece in self.pieces(data, np.arange(len(rows))):
            rows[int(chosen[0]) : int(chosen[-1]) + 1] = piece
        return rows

    def _new_rows(self, count: int) -> Tensor:
        shape = (count, self._dimension)
        return self._torch.empty(shape, dtype=self._torch.float32, device=self._device)

    def _tile_size(self, tile: int | None, numbers: int) -> int:
        """Return how many samples a pass takes, each of which computes some numbers."""
        if tile is not None:
            size = check_int(tile, "chunk", 1)
        elif self._device.type == "cuda":
            size = min(MOST_TILE, GPU_NUMBERS // numbers)
        else:
            size = max(LEAST_TILE, min(MOST_TILE, CPU_CACHE // numbers))
        if tile is None:
            size = 1 << (max(1, size).bit_length() - 1)
        if size > LANES:
            size = size // LANES * LANES
        return size

    def _passes_at_once(self, traced: TracedGradient) -> int:
        """Return how many tiles are computed side by side, one per thread."""
        if traced.draws or self._device.type != "cpu":
            return 1
        return int(self._torch.get_num_threads())

    def _passed(
        self,
        traced: TracedGradient,
        data: tuple[Any, Any],
        places: Places,
        chosen: Places,
        slots: Places,
    ) -> tuple[Sequence[Slope] | None, list[int]]:
        """Return the gradients of a tile, and the slots of samples that have none."""
        inputs, targets = self._filled(data, places[chosen], slots)
        slopes = self._tried(partial(traced.slopes, inputs, targets))
        if slopes is not None:
            return slopes, []
        broken = []
        for slot in slots.tolist():  # each alone in its slot, among zeros
            tiles = [self._torch.zeros_like(part) for part in (inputs, targets)]
            for tile, part in zip(tiles, (inputs, targets), strict=True):
                tile[slot] = part[slot]
            if self._tried(partial(traced.slopes, *tiles)) is None:
                broken.append(slot)
        inputs[broken] = 0
        targets[broken] = 0
        return self._tried(partial(traced.slopes, inputs, targets)), broken

    def _check_data(self, data: tuple[Any, Any]) -> None:
        for part in data:
            rule = "inputs and targets, both tensors with one entry per sample"
            require(isinstance(part, self._torch.Tensor), "data", type(part).__name__, rule)
            require(part.dim() > 0, "data", "a 0-D tensor", rule)
        inputs, targets = data
        rule = "as many targets as inputs"
        require(len(inputs) == len(targets), "data", f"{len(inputs)} and {len(targets)}", rule)

    def _empty(self, data: tuple[Any, Any], count: int, *, each: bool = False) -> list[Tensor]:
        """Return zeros in place of ``count`` samples, or of ``each`` one."""
        empty = []
        for part in data:
            shape = part.shape[1:] if each else (count, *part.shape[1:])
            empty.append(self._torch.zeros(shape, dtype=part.dtype, device=self._device))
        return empty

    def _filled(self, data: tuple[Any, Any], places: Places, slots: Places) -> list[Tensor]:
        """Return tiles of inputs and targets, with the samples at these places in these slots."""
        chosen = self._torch.from_numpy(places)
        where = self._torch.from_numpy(slots).to(self._device)
        tiles = self._empty(data, self._tile)
        for tile, part in zip(tiles, data, strict=True):
            samples = part.detach().index_select(0, chosen.to(part.device))
            tile.index_copy_(0, where, samples.to(self._device))
        return tiles

    def _tried(self, slopes: Callable[[], Sequence[Slope]]) -> Sequence[Slope] | None:
        """Return the gradients; None where the model or the loss raises."""
        try:
            return slopes()
        except Exception as error:
            LOGGER.error("quietbit: a sample has no gradient; its row is zero.")
            LOGGER.debug("quietbit: no gradient.", exc_info=error)
            return None

    def _put(self, slopes: Sequence[Slope] | None, slots: Places) -> Tensor:
        """Return the rows of these slots: their gradients, one parameter after the other."""
        rows = self._buffer[: len(slots)]
        if slopes is None:
            return rows.fill_(float("nan"))
        chosen = self._torch.from_numpy(slots).to(self._device)
        pieces = rows.split(self._sizes, dim=1)
        for piece, shape, slope in zip(pieces, self._shapes, slopes, strict=True):
            view = piece.unflatten(1, shape or (1,))
            if isinstance(slope, tuple):
                column, row = slope
                factors = (column.index_select(0, chosen), row.index_select(0, chosen))
                self._torch.mul(*factors, out=view)
            else:
                view.copy_(slope.index_select(0, chosen).reshape(view.shape))
        return rows


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
    other instructions, and rounded differently: a row would depend on its slot. The number is one
    of the process for some of torch's libraries, so it is put back when all jobs are done.
    """
    torch: Any = require_module("torch", "torch")
    with _ALONE:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if len(jobs) == 1:
                return [jobs[0]()]
            set_one = partial(torch.set_num_threads, 1)
            with ThreadPoolExecutor(len(jobs), initializer=set_one) as pool:
                return list(pool.map(lambda job: job(), jobs))
        finally:
            torch.set_num_threads(threads)


def refuse_batch_statistics(model: Any) -> None:
    """Refuse layers that record statistics of a batch, by their type."""
    torch: Any = require_module("torch", "torch")
    for name, layer in model.named_modules():
        batch = isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        instance = isinstance(layer, torch.nn.modules.instancenorm._InstanceNorm)
        records = batch or (instance and layer.track_running_stats)
        rule = "one without batch statistics"
        remedy = "train quietbit.group_norm(model) instead"
        require(not records, f"layer {name!r}", type(layer).__name__, rule, remedy)
