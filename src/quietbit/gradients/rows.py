"""One gradient per sample: a row computed from that sample and the weights, and nothing else.

Idea     the privacy of a sample rests on its affecting one row only. So a row is the gradient of a
         function of a single example, whatever the model and the loss. `torch.func.vmap` maps that
         function over samples; where it cannot, samples are taken one by one. Models made only of
         listed layers (`layers.py`) run on many samples at once. Which of the three ways is used is
         decided on an example of zeros, before any data are read, and never changed.
Symbols  T: the tile, samples of one pass; a lane: a slot of the tile modulo `LANES`.
Source   docs/theory/sample-rows.md.

Rows do not depend on the rest of the batch, to the last bit. Every pass has T slots, and those
without a sample hold zeros, because kernels round differently for other shapes. They also round
differently where a row begins at another alignment, so a sample's place in the data determines its
lane. The model's code runs on a copy that is discarded after the pass, so that nothing it writes
(buffers, attributes, weights) reaches another sample. A sample that raises has NaN in its row,
which a gate counts as zero; the rows of the others do not change.

Not covered: state that the code of the model or the loss keeps outside of them, in global variables
or closures.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, check_int, require, require_module
from quietbit.gradients.layers import ListedModel, NotListed, is_plain

__all__ = ["Loss", "SampleGradients", "sample_gradients", "trainable"]

Tensor: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], Any]
Places: TypeAlias = NDArray[np.int64]

LOGGER = logging.getLogger(__name__)
LANES = 16  # float32 of 64 bytes, the widest alignment that kernels look at
GPU_TILE = 256
CPU_TILE = 256
CPU_LEAST = 64  # the least tile where rows are too long for the cache
CPU_CACHE = 1 << 22  # numbers of a tile that fit the cache
CPU_NUMBERS = 1 << 26  # the most numbers of a tile
GPU_NUMBERS = 1 << 29


class Way(Protocol):
    """A way to compute the rows of a tile."""

    def write(self, inputs: Tensor, targets: Tensor, out: dict[str, Tensor]) -> None:
        """Write the gradients of each trainable parameter, one per slot."""


@final
class SampleGradients:
    """Per-sample gradients of one model and one loss.

    The constructor tries an example of zeros of the data's shape, and refuses a model or a loss
    without gradients of single samples. Each call uses the model's current weights.
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
        self._model = model
        refuse_batch_statistics(model)
        self._parameters = trainable(model)
        self._device = next(iter(self._parameters.values())).device
        self._dimension = sum(part.numel() for part in self._parameters.values())
        self._tile = self._tile_size(tile)
        self._buffer = self._new_rows(self._tile)  # fresh memory takes longer to get than to fill
        self._gathered: Tensor | None = None
        self._check_data(data)
        empty = tuple(self._empty(part) for part in data)
        self._way = self._choose(loss, empty)

    @property
    def way(self) -> str:
        """The way in which rows are computed: ``listed``, ``mapped`` or ``single``."""
        return {ListedWay: "listed", MappedWay: "mapped", SingleWay: "single"}[type(self._way)]

    def pieces(self, data: tuple[Any, Any], places: Places) -> Iterator[tuple[Places, Tensor]]:
        """Yield the samples' rows, a tile at a time, with their indices in ``places``.

        ``places`` are the samples' places in the data. Use the rows before the next iteration: the
        memory is reused.
        """
        self._check_data(data)
        for chosen, slots in arranged(places, self._tile):
            inputs, targets = self._filled(data, places[chosen], slots)
            yield chosen, self._safe_rows(inputs, targets, slots, self._buffer)

    def __call__(self, data: tuple[Any, Any]) -> Tensor:
        """Return the rows of all samples of ``data``, float32, in their order."""
        count = len(data[0])
        rows = self._new_rows(-(-count // self._tile) * self._tile)
        for chosen, slots in arranged(np.arange(count), self._tile):
            inputs, targets = self._filled(data, chosen, slots)
            start = int(chosen[0])
            self._safe_rows(inputs, targets, slots, rows[start : start + self._tile])
        return rows[:count]

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

    def _check_data(self, data: tuple[Any, Any]) -> None:
        for part in data:
            rule = "inputs and targets, both tensors with one entry per sample"
            require(isinstance(part, self._torch.Tensor), "data", type(part).__name__, rule)
            require(part.dim() > 0, "data", "a 0-D tensor", rule)
        inputs, targets = data
        rule = "as many targets as inputs"
        require(len(inputs) == len(targets), "data", f"{len(inputs)} and {len(targets)}", rule)

    def _choose(self, loss: Loss, empty: tuple[Tensor, ...]) -> Way:
        """Return the first way that can make rows of zeros."""
        reasons: list[Exception] = []
        for kind in (ListedWay, MappedWay, SingleWay):
            try:
                way: Way = kind(self._model, loss)
                way.write(empty[0], empty[1], self._views(self._buffer))
            except Exception as error:
                reasons.append(error)
            else:
                return way
        reason = reasons[-1]
        if isinstance(reason, InvalidParameter):
            raise reason
        rule = "one that has a gradient for a single example of zeros (see the cause)"
        raise InvalidParameter.of("model", rule, type(self._model).__name__) from reason

    def _empty(self, part: Tensor) -> Tensor:
        shape = (self._tile, *part.shape[1:])
        return self._torch.zeros(shape, dtype=part.dtype, device=self._device)

    def _filled(self, data: tuple[Any, Any], places: Places, slots: Places) -> list[Tensor]:
        """Return tiles of inputs and targets, with the samples at these places in these slots."""
        device = self._device
        if len(slots) == self._tile and bool((np.diff(places) == 1).all()):
            first = int(places[0])
            return [part[first : first + self._tile].to(device, copy=True) for part in data]
        chosen = self._torch.from_numpy(places)
        samples = [part[chosen.to(part.device)].to(device) for part in data]
        if len(slots) == self._tile:
            return samples
        tiles = [self._empty(part) for part in data]
        where = self._torch.from_numpy(slots).to(device)
        for tile, part in zip(tiles, samples, strict=True):
            tile[where] = part
        return tiles

    def _safe_rows(self, inputs: Tensor, targets: Tensor, slots: Places, out: Tensor) -> Tensor:
        """Return the rows of these slots; a sample that raises has NaN in its own row."""
        if isinstance(self._way, SingleWay):
            for slot in slots.tolist():
                alone = slice(slot, slot + 1)
                if not self._write(inputs[alone].clone(), targets[alone].clone(), out[alone]):
                    LOGGER.error("quietbit: a sample has no gradient; its row is zero.")
                    out[alone] = float("nan")
            return self._selected(out, slots)
        if self._write(inputs, targets, out):
            return self._selected(out, slots)
        LOGGER.error("quietbit: a sample has no gradient; its row is zero.")
        broken = [slot for slot in slots.tolist() if not self._has_row(inputs, targets, slot, out)]
        inputs[broken] = 0
        targets[broken] = 0
        if not self._write(inputs, targets, out):
            out.fill_(float("nan"))
        out[broken] = float("nan")
        return self._selected(out, slots)

    def _has_row(self, inputs: Tensor, targets: Tensor, slot: int, out: Tensor) -> bool:
        """Return whether a sample alone in its slot, among zeros, has a gradient."""
        tiles = []
        for part in (inputs, targets):
            tile = self._torch.zeros_like(part)
            tile[slot] = part[slot]
            tiles.append(tile)
        return self._write(tiles[0], tiles[1], out)

    def _write(self, inputs: Tensor, targets: Tensor, out: Tensor) -> bool:
        """Write the rows of a tile; return False if the model or the loss raised."""
        try:
            self._way.write(inputs, targets, self._views(out))
        except Exception as error:
            LOGGER.debug("quietbit: no gradient.", exc_info=error)
            return False
        return True

    def _selected(self, rows: Tensor, slots: Places) -> Tensor:
        if len(slots) == slots[-1] + 1:  # slots ascend, so these are the first ones
            return rows[: len(slots)]
        if self._gathered is None or self._gathered.device != rows.device:
            self._gathered = self._torch.empty_like(rows)
        chosen = self._torch.from_numpy(slots).to(rows.device)
        return self._torch.index_select(rows, 0, chosen, out=self._gathered[: len(slots)])

    def _views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the rows, parameter by parameter, each of the parameter's shape."""
        pieces = rows.split([part.numel() for part in self._parameters.values()], dim=1)
        named = zip(self._parameters.items(), pieces, strict=True)
        return {name: piece.unflatten(1, part.shape or (1,)) for (name, part), piece in named}


def sample_gradients(
    model: Any, loss: Loss, batch: tuple[Any, Any], *, tile: int | None = None
) -> Tensor:
    """Return one row per sample: its unclipped gradient, parameters one after the other.

    Use it with a gate that clips rows itself (`Uplink.send_samples`), where all rows fit memory.
    """
    return SampleGradients(model, loss, batch, tile=tile)(batch)


def trainable(model: Any) -> dict[str, Any]:
    """Return a model's trainable parameters by name; refuse a model without any."""
    parameters = {name: part for name, part in model.named_parameters() if part.requires_grad}
    require(parameters, "model", type(model).__name__, "one with trainable parameters")
    return parameters


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


def loss_of_one(loss: Loss, output: Any, target: Tensor) -> Tensor:
    """Return the loss of a batch of one sample, as a 0-D tensor."""
    value = loss(output, target)
    shape = tuple(getattr(value, "shape", ()))
    if shape not in ((), (1,)):
        rule = "one number for the output and the target of one sample"
        raise InvalidParameter.of("loss", rule, f"a result of shape {shape}")
    return value.reshape(())


def listed_losses(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return each sample's loss if it is torch's own cross entropy of class scores, else None."""
    torch: Any = require_module("torch", "torch")
    if type(loss) is not torch.nn.CrossEntropyLoss:
        return None
    if not is_plain(loss) or loss.weight is not None:
        return None
    if outputs.dim() != 2 or targets.dim() != 1:
        return None
    return torch.nn.functional.cross_entropy(
        outputs,
        targets,
        ignore_index=loss.ignore_index,
        label_smoothing=loss.label_smoothing,
        reduction="none",
    )


@final
class ListedWay:
    """One batched pass through listed layers; the loss is mapped over the samples."""

    def __init__(self, model: Any, loss: Loss) -> None:
        self._torch: Any = require_module("torch", "torch")
        ListedModel(model)
        self._model = model
        self._loss = loss

    def write(self, inputs: Tensor, targets: Tensor, out: dict[str, Tensor]) -> None:
        """Write the products of inputs and gradients of each layer."""
        if type(inputs) is not self._torch.Tensor:
            raise NotListed("inputs of another type")
        try:
            listed = ListedModel(self._model)
        except NotListed:  # a hook has come since
            MappedWay(self._model, self._loss).write(inputs, targets, out)
            return
        listed.write(inputs, lambda output: self._slopes(output, targets), out)

    def _slopes(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what to differentiate, and the gradient there unless it is a single number.

        For a listed loss that is the sum of losses, else the outputs.
        """
        torch = self._torch
        losses = listed_losses(self._loss, outputs, targets)
        if losses is not None:
            return losses.sum(), None
        loss = copy.deepcopy(self._loss)

        def value(output: Tensor, target: Tensor) -> Tensor:
            return loss_of_one(loss, output[None], target[None])

        slope = torch.func.grad(value)
        return outputs, torch.func.vmap(slope, randomness="different")(outputs.detach(), targets)


@final
class MappedWay:
    """The gradient of a single example, mapped over the samples by `torch.func.vmap`."""

    def __init__(self, model: Any, loss: Loss) -> None:
        self._torch: Any = require_module("torch", "torch")
        self._model = model
        self._loss = loss

    def write(self, inputs: Tensor, targets: Tensor, out: dict[str, Tensor]) -> None:
        """Write the gradients from one mapped pass of a copy of the model."""
        func = self._torch.func
        model = copy.deepcopy(self._model)
        loss = copy.deepcopy(self._loss)
        parameters = {name: part.detach() for name, part in trainable(model).items()}

        def value(parameters: dict[str, Tensor], given: Tensor, target: Tensor) -> Tensor:
            output = func.functional_call(model, parameters, (given[None],))
            return loss_of_one(loss, output, target[None])

        mapped = func.vmap(func.grad(value), in_dims=(None, 0, 0), randomness="different")
        for name, gradient in mapped(parameters, inputs, targets).items():
            out[name].copy_(gradient.reshape(out[name].shape))


@final
class SingleWay:
    """One sample after the other, each through a fresh copy of the model."""

    def __init__(self, model: Any, loss: Loss) -> None:
        self._torch: Any = require_module("torch", "torch")
        self._model = model
        self._loss = loss

    def write(self, inputs: Tensor, targets: Tensor, out: dict[str, Tensor]) -> None:
        """Write the gradients of the first sample, to the first row."""
        torch = self._torch
        model = copy.deepcopy(self._model)
        loss = copy.deepcopy(self._loss)
        parameters = trainable(model)
        with torch.enable_grad():
            value = loss_of_one(loss, model(inputs[:1]), targets[:1])
            slopes = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        for name, slope in zip(parameters, slopes, strict=True):
            if slope is None:
                out[name][0] = 0
            else:
                out[name][0] = slope.reshape(out[name].shape[1:])
