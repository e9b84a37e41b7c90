"""Many networks of one shape at once: clipped sums of their samples' gradients, by products of stacked matrices.

Idea     G models meet the same samples. Their weights are stacked, a convolution becomes a product with what each of
         its places sees, and every product is one call for all models. Between layers with weights torch
         differentiates; the gradients of single samples come layer by layer as in `quietbit.gradients`, are
         measured, and leave as one clipped sum per model and client.
Symbols  G models; N samples of m clients, client after client; L places of a convolution, K entries that a place sees
         (row, column, channel), O channels out; u = (G, N L, K) inputs of a layer, g = (G, N, L, O) slopes there.
Source   Goodfellow (2015), "Efficient per-example gradient computations"; Abadi et al. (2016) for clipping per sample.

Images lie with their channels last, so that the copy which collects what a place sees moves whole runs of memory. A
dense layer's gradient of a sample has rank one, and is never written: its length is a product of two lengths.
Made for stacks of known layers whose convolutions keep the size (stride 1, odd kernels); others are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from quietbit.errors import require, require_module
from quietbit.simulate.problem import MARGIN
from quietbit_lab.task.batch import exact_float32

__all__ = ["StackedLayers"]

torch: Any = require_module("torch", "lab")
Tensor: TypeAlias = Any
# Layers that treat samples apart.
APART = (
    *("Linear", "Conv2d", "Flatten", "Identity", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d"),
    *("Tanh", "ReLU", "GELU", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Softplus", "Hardtanh"),
)
ALIGNED = 4  # floats: products of rows that begin at 16 bytes are quicker


@final
@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A layer with weights, where these lie in a flat model, and the layers up to the next such layer."""

    layer: Any
    start: int
    after: tuple[Any, ...]

    @property
    def dense(self) -> bool:
        """Whether the layer is not a convolution."""
        return int(self.layer.weight.ndim) == 2

    @property
    def middle(self) -> int:
        """Where the bias begins."""
        return self.start + int(self.layer.weight.numel())

    @property
    def stop(self) -> int:
        """Where the next layer begins."""
        return self.middle + int(self.layer.bias.numel())


@final
@dataclass(frozen=True, slots=True, eq=False)
class StackedLayers:
    """The layers of a module, for flat models (G, d); holds no weights."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, module: Any) -> StackedLayers:
        """From a stack of layers that begins with one that has weights."""
        layers = _layers(module)
        weighted = [place for place, layer in enumerate(layers) if type(layer).__name__ in ("Linear", "Conv2d")]
        require(weighted[:1] == [0], "first layer", type(layers[0]).__name__, "one with weights")
        blocks, start = [], 0
        for place, following in zip(weighted, [*weighted[1:], len(layers)], strict=True):
            layer = layers[place]
            require(layer.bias is not None, "layer without a bias", type(layer).__name__, "given one")
            if layer.weight.ndim == 4:
                kept = tuple(size // 2 for size in layer.kernel_size) == tuple(layer.padding)
                odd = all(size % 2 for size in layer.kernel_size)
                plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
                require(kept and odd and plain, "convolution", layer, "one that keeps the size of an image")
            blocks.append(Block(layer, start, tuple(layers[place + 1 : following])))
            start = blocks[-1].stop
        return cls(tuple(blocks))

    @property
    def dimension(self) -> int:
        """Parameters of a model."""
        return self.blocks[-1].stop

    def scores(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Answers of every model, (G, N, classes), to images (N, colours, height, width)."""
        with torch.no_grad(), exact_float32():
            x = _shared(inputs)
            for block in self.blocks:
                x = _between(block, _product(block, models, _seen(block, x, models.shape[0]), x.shape[1:-1]))
        return x

    def clipped_means(
        self, models: Tensor, inputs: Tensor, labels: Tensor, sizes: Sequence[int], clips: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Means of clipped gradients, (G, m, d), and whether all of a model's gradients are finite, (G,).

        ``sizes`` are the samples of each client, ``clips`` the L2 clip of each model in float64.
        """
        with exact_float32():
            parts = self._sample_gradients(models, inputs, labels)
            squares = sum(_squared_lengths(block, *part) for block, part in parts)
            lengths, bound = squares.sqrt(), clips[:, None] * (1 - MARGIN)
            spread = _spread((bound / torch.maximum(lengths, bound)).clamp(max=1.0), sizes)
            rows = torch.empty((models.shape[0], len(sizes), self.dimension), device=models.device)
            for block, part in parts:
                _add_up(block, *part, spread, rows)
        return rows, torch.isfinite(lengths).all(dim=1)

    def _sample_gradients(
        self, models: Tensor, inputs: Tensor, labels: Tensor
    ) -> list[tuple[Block, tuple[Tensor, Tensor]]]:
        """For every layer with weights, from the last to the first, what makes up its gradients of single samples."""
        count = models.shape[0]
        kept, x = [], _shared(inputs)
        for block in self.blocks:
            u = _seen(block, x, count)
            z = _product(block, models, u, x.shape[1:-1]).requires_grad_()
            with torch.enable_grad():
                y = _between(block, z)
            kept.append((block, u, z, y))
            x = y.detach()
        with torch.enable_grad():
            scores = kept[-1][3]
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.repeat(count), reduction="sum")
        (slope,) = torch.autograd.grad(loss, kept[-1][2])
        parts = []
        while kept:
            block, u, _, _ = kept.pop()
            parts.append((block, _layer_gradients(block, u, slope)))
            if kept:
                _, _, z, y = kept[-1]
                (slope,) = torch.autograd.grad(y, z, _backward(block, models, slope).reshape(y.shape))
        return parts


def _layers(module: Any) -> list[Any]:
    """Return the layers of nested stacks in order; refuse any that may mix samples, draw or overwrite its input."""
    if type(module) is torch.nn.Sequential:
        found = [layer for child in module for layer in _layers(child)]
        require(len({id(layer) for layer in found}) == len(found), "layers", len(found), "all different")
        return found
    kind = type(module)
    known = kind.__module__.startswith("torch.nn.modules") and kind.__name__ in APART
    plain = known and not getattr(module, "inplace", False) and getattr(module, "start_dim", 1) == 1
    require(plain, "layer", module, "one that treats samples apart, of a known kind")
    return [module]


def _shared(inputs: Tensor) -> Tensor:
    """Images that all models meet, channels last: (1, N, height, width, colours); vectors as they are."""
    return (inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs)[None]


def _seen(block: Block, x: Tensor, count: int) -> Tensor:
    """Return what the layer multiplies: (G, N L, K), K rounded up if the inputs are still the same for all models."""
    u = x.flatten(1, -2) if block.dense else _unfolded(x, block.layer.kernel_size)
    if u.shape[0] == count:
        return u
    return torch.nn.functional.pad(u, (0, -u.shape[2] % ALIGNED)).repeat(count, 1, 1)


def _unfolded(x: Tensor, kernel: tuple[int, int]) -> Tensor:
    """Return what each place of a convolution sees of (G, N, height, width, C), as (G, N L, rows columns C)."""
    rows, columns = kernel
    around = (0, 0, columns // 2, columns // 2, rows // 2, rows // 2)
    padded = torch.nn.functional.pad(x, around).contiguous()
    model, sample, row, column, channel = padded.stride()
    seen = padded.as_strided(
        (*x.shape[:4], rows, columns, x.shape[4]), (model, sample, row, column, row, column, channel)
    )
    return seen.reshape(x.shape[0], -1, rows * columns * x.shape[4])


def _product(block: Block, models: Tensor, u: Tensor, places: Sequence[int]) -> Tensor:
    """Return the layer's outputs, (G, N, ..., O)."""
    layer = block.layer
    weight, bias = models[:, block.start : block.middle], models[:, None, block.middle : block.stop]
    if block.dense:
        matrix = weight.reshape(-1, *layer.weight.shape).transpose(1, 2)
    else:
        matrix = weight.reshape(-1, *layer.weight.shape).permute(0, 3, 4, 2, 1).flatten(1, 3)
    matrix = torch.nn.functional.pad(matrix, (0, 0, 0, u.shape[2] - matrix.shape[1]))
    return torch.baddbmm(bias, u, matrix).reshape(models.shape[0], *places, -1)


def _between(block: Block, z: Tensor) -> Tensor:
    """Apply the layers up to the next one with weights; images go through with their channels last in memory."""
    count = z.shape[0]
    for layer in block.after:
        if type(layer).__name__ == "Flatten":
            z = z.movedim(-1, 2).flatten(2)
        elif z.ndim == 5:
            planes = layer(z.flatten(0, 1).permute(0, 3, 1, 2))
            z = planes.permute(0, 2, 3, 1).unflatten(0, (count, -1))
        else:
            z = layer(z.flatten(0, 1)).unflatten(0, (count, -1))
    return z


def _backward(block: Block, models: Tensor, slope: Tensor) -> Tensor:
    """Slopes at the layer's inputs: of a convolution, what each place sees of the slopes, through the turned kernel."""
    layer = block.layer
    weight = models[:, block.start : block.middle].reshape(-1, *layer.weight.shape)
    if block.dense:
        return torch.bmm(slope.flatten(1, -2), weight)
    return torch.bmm(_unfolded(slope, layer.kernel_size), weight.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3))


def _layer_gradients(block: Block, u: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Of a convolution (G, N, O, K) and (G, N, O), weights and biases; of a dense layer its inputs and slopes."""
    (count, samples) = slope.shape[:2]
    if block.dense:
        require(slope.ndim == 3, "shape before a dense layer", tuple(slope.shape[1:]), "flat")
        return u.reshape(count, samples, -1), slope
    g = slope.reshape(count * samples, -1, slope.shape[-1])
    weights = torch.bmm(g.transpose(1, 2), u.reshape(count * samples, -1, u.shape[2]))
    return weights.unflatten(0, (count, samples)), g.sum(dim=1).unflatten(0, (count, samples))


def _squared_lengths(block: Block, one: Tensor, other: Tensor) -> Tensor:
    """Of every sample's gradient of this layer, (G, N); each layer's length is right to a few roundings of float32."""
    first, second = (torch.linalg.vector_norm(part.flatten(2), dim=2).double().square() for part in (one, other))
    return second * (first + 1) if block.dense else first + second


def _spread(factors: Tensor, sizes: Sequence[int]) -> Tensor:
    """(G, m, N) in float32: row c holds the factors of client c's samples over their number, and zeros."""
    owners = torch.repeat_interleave(
        torch.arange(len(sizes), device=factors.device), torch.tensor(sizes, device=factors.device)
    )
    share = 1 / torch.tensor(sizes, dtype=torch.float64, device=factors.device)
    theirs = torch.arange(len(sizes), device=factors.device)[:, None] == owners
    return ((factors * share[owners])[:, None] * theirs).float()


def _add_up(block: Block, one: Tensor, other: Tensor, spread: Tensor, rows: Tensor) -> None:
    """Write the clipped sums of this layer to where its parameters lie."""
    layer = block.layer
    rows[:, :, block.middle : block.stop] = torch.bmm(spread, other)
    if block.dense:
        scaled = spread[:, :, :, None] * other[:, None]  # (G, m, N, O)
        weights = torch.matmul(scaled.transpose(2, 3), one[:, None])
        rows[:, :, block.start : block.middle] = weights.flatten(2)
        return
    out, colours, tall, wide = layer.weight.shape
    sums = torch.bmm(spread, one.flatten(2)).unflatten(2, (out, -1))[..., : tall * wide * colours]
    turned = sums.unflatten(3, (tall, wide, colours)).permute(0, 1, 2, 5, 3, 4)
    rows[:, :, block.start : block.middle] = turned.flatten(2)
