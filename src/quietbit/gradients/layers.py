"""The list of layers whose per-sample gradients follow from one batched pass.

Idea     a model that is one listed layer, or `nn.Sequential` of such, runs on many samples at once:
         each listed layer computes sample i of its output from sample i of its input. One backward
         pass then gives, for every layer, its input and the gradient at its output; the gradients
         of its parameters are their products, sample by sample. Whether a layer is listed depends
         on its exact type, its settings and the number of axes of its input, never on values.
         Subclasses, hooks, parametrizations and changed ``forward`` functions are not listed;
         neither are modules of users, whose ``forward`` may do anything.
Symbols  n samples; a layer as a product: inputs A (n, t, i), gradients at the output B (n, t, o), a
         sample's gradient B^T A.
Source   Goodfellow (2015), gradients of single examples from one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias, final

from attrs import frozen

from quietbit.errors import require_module

__all__ = ["ListedModel", "NotListed", "is_plain"]

Tensor: TypeAlias = Any
Apart: TypeAlias = Callable[[Any, int], bool]  # of a layer and the number of axes of its input
Closing: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor | None]]
Outputs: TypeAlias = dict[str, Tensor]  # where the gradients of a layer's parameters are written
Products: TypeAlias = Callable[[Any, Tensor, Tensor, Outputs], None]

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class NotListed(Exception):
    """The list does not cover this model, or inputs of this shape."""


@final
@frozen
class Kind:
    """One entry of the list: when a layer separates samples, and its parameters' gradients."""

    apart: Apart
    products: Products | None = None


@final
class ListedModel:
    """A model made only of listed layers, in the order in which they run."""

    def __init__(self, model: Any) -> None:
        """Raise `NotListed` if a layer is not listed, or two layers share a parameter."""
        self._torch: Any = require_module("torch", "torch")
        if self._torch.nn.modules.module._has_any_global_hook():
            raise NotListed("hooks on all modules")
        self._layers = list(_chain(self._torch, "", model))
        owned = [id(part) for _, layer in self._layers for part in layer.parameters(recurse=False)]
        if len(set(owned)) < len(owned):
            raise NotListed("a parameter that is used twice")

    def write(self, inputs: Tensor, closing: Closing, out: Outputs) -> None:
        """Write the sample gradients of each trainable parameter.

        Args:
            inputs: one entry per sample.
            closing: takes the outputs; returns what to differentiate, and the gradient there
                unless it is a single number.
            out: the arrays to write, by the names of the parameters.
        """
        torch = self._torch
        value = inputs
        seen: list[tuple[str, Any, Tensor, Any]] = []
        with torch.enable_grad():
            for name, layer in self._layers:
                given = value
                value = _output(layer, given, len(inputs))
                learns = any(part.requires_grad for part in layer.parameters(recurse=False))
                if learns:
                    # An edge of the graph, because a tensor would keep its memory.
                    edge = torch.autograd.graph.get_gradient_edge(value)
                    seen.append((name, layer, given.detach(), edge))
            end, gradient = closing(value)
            edges = [edge for _, _, _, edge in seen]
            slopes = torch.autograd.grad(end, edges, gradient)
        for (name, layer, given, _), slope in zip(seen, slopes, strict=True):
            products = _kinds()[type(layer)].products
            if products is None:
                raise NotListed("a layer without gradients that has parameters")
            prefix = f"{name}." if name else ""
            parts = {
                part: out[prefix + part]
                for part, parameter in layer.named_parameters(recurse=False)
                if parameter.requires_grad
            }
            products(layer, given, slope, parts)


def _output(layer: Any, given: Tensor, count: int) -> Tensor:
    if not _kinds()[type(layer)].apart(layer, given.dim()):
        raise NotListed(f"{type(layer).__name__} on an input of {given.dim()} axes")
    if getattr(layer, "inplace", False):
        given = given.clone()
    output = type(layer).forward(layer, given)
    if output.dim() < 1 or len(output) != count:
        raise NotListed("an output without one entry per sample")
    return output


def _chain(torch: Any, name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the listed layers of a module by name, in the order in which they run."""
    if not is_plain(module):
        raise NotListed(name)
    if type(module) is torch.nn.Sequential:
        for key, child in module._modules.items():
            yield from _chain(torch, f"{name}.{key}" if name else key, child)
    elif type(module) in _kinds() and not module._modules and not module._buffers:
        yield name, module
    else:
        raise NotListed(name)


def is_plain(module: Any) -> bool:
    """Return whether calling a module runs torch's own ``forward`` of its type and nothing else."""
    torch: Any = require_module("torch", "torch")
    if any(getattr(module, hooks, None) for hooks in HOOKS) or "forward" in vars(module):
        return False
    parameters = [part for part in module._parameters.values() if part is not None]
    usual = all(type(part) is torch.nn.Parameter for part in parameters)
    named = set(module._parameters) <= {"weight", "bias"}
    forward: Any = type(module).forward
    return usual and named and str(forward.__module__).startswith("torch.nn.modules.")


@cache
def _kinds() -> dict[type, Kind]:
    """Return the list, by type of layer."""
    torch: Any = require_module("torch", "torch")
    nn = torch.nn
    elementwise = Kind(lambda layer, axes: axes >= 1)
    kinds = dict.fromkeys(
        (
            nn.CELU,
            nn.Dropout,
            nn.ELU,
            nn.GELU,
            nn.Hardsigmoid,
            nn.Hardswish,
            nn.Hardtanh,
            nn.Identity,
            nn.LeakyReLU,
            nn.LogSigmoid,
            nn.Mish,
            nn.ReLU,
            nn.ReLU6,
            nn.SELU,
            nn.SiLU,
            nn.Sigmoid,
            nn.Softplus,
            nn.Softsign,
            nn.Tanh,
            nn.Tanhshrink,
        ),
        elementwise,
    )
    for pool in (nn.AvgPool1d, nn.AdaptiveAvgPool1d):
        kinds[pool] = Kind(lambda layer, axes: axes == 3)
    for pool in (nn.AvgPool2d, nn.AdaptiveAvgPool2d):
        kinds[pool] = Kind(lambda layer, axes: axes == 4)
    kinds[nn.MaxPool1d] = Kind(lambda layer, axes: axes == 3 and not layer.return_indices)
    kinds[nn.MaxPool2d] = Kind(lambda layer, axes: axes == 4 and not layer.return_indices)
    kinds[nn.Flatten] = Kind(lambda layer, axes: layer.start_dim == 1 and layer.end_dim == -1)
    kinds[nn.Softmax] = Kind(_within_sample)
    kinds[nn.LogSoftmax] = Kind(_within_sample)
    kinds[nn.Linear] = Kind(lambda layer, axes: axes >= 2, _linear)
    kinds[nn.Conv1d] = Kind(lambda layer, axes: axes == 3 and _pads_zeros(layer), _convolution)
    kinds[nn.Conv2d] = Kind(lambda layer, axes: axes == 4 and _pads_zeros(layer), _convolution)
    kinds[nn.GroupNorm] = Kind(lambda layer, axes: axes >= 2, _group_normalisation)
    kinds[nn.LayerNorm] = Kind(
        lambda layer, axes: axes > len(layer.normalized_shape), _layer_normalisation
    )
    kinds[nn.Embedding] = Kind(_is_lookup, _embedding)
    return kinds


def _within_sample(layer: Any, axes: int) -> bool:
    if layer.dim is None:
        return False
    place = layer.dim + axes if layer.dim < 0 else layer.dim
    return bool(place >= 1)


def _pads_zeros(layer: Any) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _is_lookup(layer: Any, axes: int) -> bool:
    """Return whether an embedding neither changes its weights nor counts words in a batch."""
    return axes >= 1 and layer.max_norm is None and not layer.scale_grad_by_freq


def _linear(layer: Any, given: Tensor, slope: Tensor, out: Outputs) -> None:
    torch: Any = require_module("torch", "torch")
    given = given.to(slope.dtype)
    if slope.dim() == 2:
        if "weight" in out:
            _write_product(torch.mul, slope[:, :, None], given[:, None, :], out["weight"])
        _write_sum(slope, [], out.get("bias"))
        return
    a = given.flatten(1, -2)
    b = slope.flatten(1, -2)
    if "weight" in out:
        _write_product(torch.bmm, b.transpose(1, 2), a, out["weight"])
    _write_sum(b, [1], out.get("bias"))


def _convolution(layer: Any, given: Tensor, slope: Tensor, out: Outputs) -> None:
    torch: Any = require_module("torch", "torch")
    b = slope.flatten(2)
    _write_sum(b, [2], out.get("bias"))
    if "weight" not in out:
        return
    given = given.to(slope.dtype)
    size = tuple(layer.kernel_size)
    dilation = tuple(layer.dilation)
    stride = tuple(layer.stride)
    padding = tuple(layer.padding)
    if given.dim() == 3:  # one line of pixels
        given = given[:, :, None]
        size = (1, *size)
        dilation = (1, *dilation)
        stride = (1, *stride)
        padding = (0, *padding)
    tall, wide = padding
    padded = torch.nn.functional.pad(given, (wide, wide, tall, tall))
    places = [
        (padded.shape[2 + i] - dilation[i] * (size[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    sample, channel, row, column = padded.stride()
    strides = (
        sample,
        channel,
        row * dilation[0],
        column * dilation[1],
        row * stride[0],
        column * stride[1],
    )
    # One strided view of all patches: torch's own unfold starts a kernel per sample on a GPU.
    patches = padded.as_strided((*padded.shape[:2], *size, *places), strides)
    blocks = len(given) * layer.groups
    a = patches.reshape(blocks, -1, b.shape[-1])
    rows = torch.bmm(b.reshape(blocks, -1, b.shape[-1]), a.transpose(1, 2))
    out["weight"].copy_(rows.reshape(out["weight"].shape))


def _group_normalisation(layer: Any, given: Tensor, slope: Tensor, out: Outputs) -> None:
    torch: Any = require_module("torch", "torch")
    normal = torch.nn.functional.group_norm(given.to(slope.dtype), layer.num_groups, eps=layer.eps)
    pixels = list(range(2, slope.dim()))
    _write_sum(normal * slope, pixels, out.get("weight"))
    _write_sum(slope, pixels, out.get("bias"))


def _layer_normalisation(layer: Any, given: Tensor, slope: Tensor, out: Outputs) -> None:
    torch: Any = require_module("torch", "torch")
    normal = torch.nn.functional.layer_norm(
        given.to(slope.dtype), layer.normalized_shape, eps=layer.eps
    )
    between = list(range(1, given.dim() - len(layer.normalized_shape)))
    _write_sum(normal * slope, between, out.get("weight"))
    _write_sum(slope, between, out.get("bias"))


def _embedding(layer: Any, given: Tensor, slope: Tensor, out: Outputs) -> None:
    count = len(given)
    words = given.reshape(count, -1)
    each = slope.reshape(count, words.shape[1], layer.embedding_dim)
    if layer.padding_idx is not None:
        each = each * (words != layer.padding_idx)[:, :, None]
    rows = out["weight"]
    rows.zero_()
    rows.scatter_add_(1, words[:, :, None].expand(each.shape).long(), each.to(rows.dtype))


def _write_product(operation: Any, a: Tensor, b: Tensor, out: Tensor) -> None:
    if out.dtype == a.dtype:
        operation(a, b, out=out)
    else:
        out.copy_(operation(a, b))


def _write_sum(values: Tensor, axes: list[int], out: Tensor | None) -> None:
    """Write the sums over some axes; does nothing where ``out`` is None."""
    if out is not None:
        out.copy_(values.sum(dim=axes) if axes else values)
