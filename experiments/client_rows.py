r"""Gradients of single clients of a wide network, a cohort at once, in rows of 36 million numbers.

Idea     every layer runs through a function of its own, whose backward pass writes the layer's part
         of every client's row where it belongs: one product of matrices a convolution (the gradient
         at its output with the patches of its input) straight into the rows, sums over places for a
         normalisation. Lengths are taken once, at the end. Weights are parts of one vector, which
         is rounded once a round.
Symbols  n clients, d parameters; P places of an image, O and C channels out and in, G groups.
         Images are (n, P, C) in memory. A convolution's part of a row is (O, 3, 3, C).
Source   Goodfellow (2015) for gradients of single examples from one pass.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from wide_network import GROUPS, Wide, scaled

ALIGNED = 64  # numbers: rows start where vectors of them can be read and written
SLICE = 1 << 21  # columns whose lengths are taken at once, so that an index fits 32 bits


class Rows:
    """A network of convolutions, group normalisations and one dense layer whose backward pass fills rows."""

    def __init__(
        self, network: Wide, device: str, most: int, *, kind: Any = None, compiled: bool = False
    ) -> None:
        self.network, self.device, self.most = network, device, most
        self.kind = kind or (torch.bfloat16 if device == "cuda" else torch.float32)
        self.normed = torch.compile(normed, dynamic=False) if compiled else normed
        self.unnormed = torch.compile(unnormed, dynamic=False) if compiled else unnormed
        kinds = (nn.Conv2d, nn.GroupNorm, nn.Linear)
        self.layers = [module for module in network.modules() if isinstance(module, kinds)]
        ends = list(
            itertools.accumulate(
                sum(p.numel() for p in layer.parameters()) for layer in self.layers
            )
        )
        self.places, self.dimension = [0, *ends[:-1]], ends[-1]
        stride = -(-self.dimension // ALIGNED) * ALIGNED
        self.buffer = torch.zeros((most, stride), dtype=self.kind, device=device)
        self.watched = torch.zeros(
            (), device=device, requires_grad=True
        )  # what makes autograd come by every layer
        for place, layer in enumerate(self.layers):
            self._lead(place, layer)
        self.load(self.flat())

    def _lead(self, place: int, layer: Any) -> None:
        function = {nn.Conv2d: _Convolved, nn.Linear: _Dense}.get(type(layer), _Normed)
        layer.forward = lambda x: function.apply(x, self.watched, self, place)

    def flat(self) -> Any:
        """Return the network's parameters in one vector, in the rows' order."""
        parts = [parameter for layer in self.layers for parameter in layer.parameters()]
        return torch.cat([turned(part.detach()).reshape(-1) for part in parts]).to(
            self.device, _finer(self.kind)
        )

    def load(self, flat: Any) -> None:
        """Run with these parameters from now on."""
        self.weights = flat.to(self.kind)

    def part(self, place: int) -> tuple[Any, Any]:
        """Return a layer's weights, as it uses them, and what follows them: a bias, or nothing."""
        shape = self.layers[place].weight.shape
        start, count = self.places[place], shape.numel()
        first = self.weights[start : start + count]
        if len(shape) == 4:
            outs, ins, height, width = shape
            return first.reshape(outs, height, width, ins).permute(0, 3, 1, 2), None
        return first.reshape(shape), self.weights[start + count : start + count + shape[0]]

    def of(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Rows (n, d), unclipped, and their lengths."""
        count, finer = labels.numel(), _finer(self.kind)
        loss = nn.functional.cross_entropy(self.scores(images).to(finer), labels, reduction="sum")
        torch.autograd.backward(loss)
        rows, squares = (
            self.buffer[:count, : self.dimension],
            torch.zeros(count, dtype=finer, device=self.device),
        )
        for part in rows.split(SLICE, dim=1):
            squares += torch.linalg.vector_norm(part, dim=1, dtype=finer).square()
        return rows, squares.sqrt()

    def scores(self, images: Any) -> Any:
        """Of bytes."""
        return self.network(
            scaled(images).to(self.kind).contiguous(memory_format=torch.channels_last)
        )

    def here(self, place: int, count: int, numbers: int, skip: int = 0) -> Any:
        """Return a layer's part of the first ``count`` rows."""
        start = self.places[place] + skip
        return self.buffer[:count, start : start + numbers]


def turned(parameter: Any) -> Any:
    """Return a convolution's filters with channels last, as the rows hold them.

    Any other parameter unchanged.
    """
    return parameter.permute(0, 2, 3, 1) if parameter.dim() == 4 else parameter


def patches(x: Any, side: int, stride: int, padding: int) -> Any:
    """Return what a convolution sees at every place.

    (n, P, side side C) of images (n, height, width, C).
    """
    channels = x.shape[3]
    padded = nn.functional.pad(x, (0, 0, padding, padding, padding, padding)).contiguous()
    if channels * padded.element_size() % 8 == 0:
        padded = padded.view(torch.int64)  # copied eight bytes at a time
    count, height, width, inner = padded.shape
    down, across = (height - side) // stride + 1, (width - side) // stride + 1
    image, row, column, _ = padded.stride()
    strides = (image, stride * row, stride * column, row, column, 1)
    found = (
        padded.as_strided((count, down, across, side, side, inner), strides)
        .contiguous()
        .view(x.dtype)
    )
    return found.reshape(count, down * across, side * side * channels)


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, _: Any, rows: Rows, place: int) -> Any:
        ctx.save_for_backward(x)
        ctx.rows, ctx.place, ctx.weights = rows, place, rows.part(place)[0]
        layer: Any = rows.layers[place]
        return nn.functional.conv2d(x, ctx.weights, None, layer.stride, layer.padding)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        (g,), (x,) = given, ctx.saved_tensors
        layer, (outs, _, side, _) = ctx.rows.layers[ctx.place], ctx.weights.shape
        seen = patches(x.permute(0, 2, 3, 1), side, layer.stride[0], layer.padding[0])
        slopes = g.permute(0, 2, 3, 1).reshape(x.shape[0], -1, outs)
        out = ctx.rows.here(ctx.place, x.shape[0], outs * seen.shape[2]).view(
            x.shape[0], outs, seen.shape[2]
        )
        torch.bmm(slopes.transpose(1, 2), seen, out=out)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        back = torch.ops.aten.convolution_backward(
            g,
            x,
            ctx.weights,
            None,
            layer.stride,
            layer.padding,
            (1, 1),
            False,
            (0, 0),
            1,
            (True, False, False),
        )
        return back[0], None, None, None


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, _: Any, rows: Rows, place: int) -> Any:
        layer, (ctx.scale, ctx.shift) = rows.layers[place], rows.part(place)
        ctx.rows, ctx.place = rows, place
        inner = x.detach().permute(0, 2, 3, 1).contiguous()
        found, middle, inverse = rows.normed(inner, ctx.scale, ctx.shift, layer.eps)
        ctx.save_for_backward(inner, middle, inverse)
        return found.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        g = given[0].permute(0, 2, 3, 1).contiguous()
        x, middle, inverse = ctx.saved_tensors
        back, slopes = ctx.rows.unnormed(x, g, ctx.scale, ctx.shift, middle, inverse)
        ctx.rows.here(ctx.place, x.shape[0], slopes.shape[1]).copy_(slopes)
        return back.permute(0, 3, 1, 2), None, None, None


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, _: Any, rows: Rows, place: int) -> Any:
        ctx.save_for_backward(x)
        ctx.rows, ctx.place = rows, place
        ctx.weights, bias = rows.part(place)
        return nn.functional.linear(x, ctx.weights, bias)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        (g,), (x,) = given, ctx.saved_tensors
        products = (g[:, :, None] * x[:, None, :]).flatten(1)
        ctx.rows.here(ctx.place, x.shape[0], products.shape[1]).copy_(products)
        ctx.rows.here(ctx.place, x.shape[0], g.shape[1], products.shape[1]).copy_(g)
        return g @ ctx.weights, None, None, None


def normed(x: Any, scale: Any, shift: Any, stable: float) -> tuple[Any, Any, Any]:
    """Images (n, height, width, C) normalised by groups of channels and cut at zero.

    Mean and 1 / deviation (n, C).
    """
    count, height, width, channels = x.shape
    wide = x.to(_finer(x.dtype))
    sums, squares = wide.sum(dim=(1, 2)), wide.square().sum(dim=(1, 2))
    numbers = height * width * (channels // GROUPS)
    middle = sums.reshape(count, GROUPS, -1).sum(dim=2) / numbers
    spread = squares.reshape(count, GROUPS, -1).sum(dim=2) / numbers - middle.square()
    each = (count, GROUPS, channels // GROUPS)
    middle = middle[:, :, None].expand(each).reshape(count, channels)
    inverse = (spread + stable).rsqrt()[:, :, None].expand(each).reshape(count, channels)
    places = (count, 1, 1, channels)
    found = (wide - middle.reshape(places)) * inverse.reshape(places) * scale + shift
    return found.relu().to(x.dtype), middle, inverse


def unnormed(x: Any, g: Any, scale: Any, shift: Any, middle: Any, inverse: Any) -> tuple[Any, Any]:
    """Run the backward pass: the gradient by the images, and every client's own by scale and shift (n, 2 C)."""
    count, height, width, channels = x.shape
    places, finer = (count, 1, 1, channels), _finer(x.dtype)
    normal = (x.to(finer) - middle.reshape(places)) * inverse.reshape(places)
    slope = torch.where(normal * scale + shift > 0, g.to(finer), 0.0)
    by_scale, by_shift = (slope * normal).sum(dim=(1, 2)), slope.sum(dim=(1, 2))
    share = 1 / (height * width * (channels // GROUPS))
    each = (count, GROUPS, channels // GROUPS)
    tilt = (by_scale * scale).reshape(each).sum(dim=2, keepdim=True).expand(each).reshape(
        places
    ) * share
    lift = (by_shift * scale).reshape(each).sum(dim=2, keepdim=True).expand(each).reshape(
        places
    ) * share
    back = inverse.reshape(places) * (slope * scale - lift - normal * tilt)
    return back.to(x.dtype), torch.cat((by_scale, by_shift), dim=1)


def _finer(kind: Any) -> Any:
    return torch.float64 if kind is torch.float64 else torch.float32
