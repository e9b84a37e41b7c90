"""Gradients of single samples, of every parameter tensor, where torch works.

Idea     in a stack of layers that treat samples apart, the gradients of the *summed* loss at the layers' outputs
         hold every sample's own in its row. A dense layer's gradient for a sample is then an outer product, a
         convolution's a product of its unfolded input: one batched product per layer, at the cost of an ordinary
         backward pass. Any other module goes through vmap over grad, which cannot mix samples and is slower.
Symbols  x = a layer's input; g = gradient of the loss at its output; L = places of a convolution.
Source   Goodfellow (2015), "Efficient per-example gradient computations"; PyTorch's functional transforms.

The stack is taken only where every layer is known by its exact type: a layer that looks at the whole batch
(batch statistics), draws at random or writes over its input is not on the list, so the module goes through vmap.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from threading import local
from typing import Any, Protocol, TypeAlias, final

from quietbit.errors import require_module

__all__ = ["LayerGradients", "MappedGradients", "SampleGradients", "sample_gradients_of"]

Weights: TypeAlias = dict[str, Any]  # parameter tensors by name, in the module's order

APART = (
    *("Identity", "Tanh", "ReLU", "GELU", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Softplus", "Hardtanh"),
    *("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d"),
)


class SampleGradients(Protocol):
    """How the gradients of single samples of one module are found."""

    def scores(self, weights: Weights, inputs: Any) -> Any:
        """The module's answers."""
        ...

    def __call__(self, weights: Weights, inputs: Any, labels: Any) -> list[Any]:
        """For every parameter tensor a matrix with the flat gradient of each sample's loss in a row."""
        ...


def sample_gradients_of(module: Any) -> SampleGradients:
    """The faster of two exact ways: layer by layer where the module is a stack of known layers."""
    layers = _stack("", module)
    if layers is None or len({id(layer) for _, layer in layers}) < len(layers):
        return MappedGradients(module)
    return LayerGradients(tuple(layers))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayerGradients:
    """Layer by layer; holds no state, so several threads may use it."""

    layers: tuple[tuple[str, Any], ...]

    def scores(self, weights: Weights, inputs: Any) -> Any:
        """The layers one after the other."""
        for name, layer in self.layers:
            inputs = _apply(name, layer, weights, inputs)
        return inputs

    def __call__(self, weights: Weights, inputs: Any, labels: Any) -> list[Any]:
        """One backward pass to the layers' outputs, then a batched product per layer."""
        torch = require_module("torch", "lab")
        kept: list[tuple[str, Any, Any, Any]] = []
        with torch.enable_grad():
            for name, layer in self.layers:
                before = inputs
                inputs = _apply(name, layer, weights, before)
                if any(True for _ in layer.parameters(recurse=False)):
                    if not kept:
                        inputs.requires_grad_()  # the weights do not: autograd stops at the first output
                    kept.append((name, layer, before.detach(), inputs))
            loss = torch.nn.functional.cross_entropy(inputs, labels, reduction="sum")
            slopes = torch.autograd.grad(loss, [output for *_, output in kept])
        found: list[Any] = []
        for (_, layer, before, _), slope in zip(kept, slopes, strict=True):
            found += _layer_gradients(layer, before, slope)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class MappedGradients:
    """Any module, by vmap over grad; every thread has a copy, because torch swaps the parameters in place."""

    module: Any
    _copies: local = field(default_factory=local, init=False, repr=False)

    def scores(self, weights: Weights, inputs: Any) -> Any:
        """The module with these parameters."""
        return require_module("torch", "lab").func.functional_call(self._copy(), weights, (inputs,))

    def __call__(self, weights: Weights, inputs: Any, labels: Any) -> list[Any]:
        """Every sample is a batch of one."""
        torch, module = require_module("torch", "lab"), self._copy()

        def loss(chosen: Any, one: Any, label: Any) -> Any:
            scores = torch.func.functional_call(module, chosen, (one[None],))
            return torch.nn.functional.cross_entropy(scores, label[None])

        found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, inputs, labels)
        return [found[name].flatten(1) for name in weights]

    def _copy(self) -> Any:
        if not hasattr(self._copies, "module"):
            self._copies.module = deepcopy(self.module)
        return self._copies.module


def _stack(name: str, module: Any) -> list[tuple[str, Any]] | None:
    """The layers of nested Sequentials in order, or nothing where one of them is not on the list."""
    nn = require_module("torch", "lab").nn
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return None
    if type(module) is not nn.Sequential:
        return [(name, module)] if _known(module) else None
    layers: list[tuple[str, Any]] = []
    for key, child in module.named_children():
        part = _stack(f"{name}{key}.", child)
        if part is None:
            return None
        layers += part
    # A layer named twice appears once in named_children: what would be left out must not be.
    return layers if len(list(module.named_children())) == len(module) else None


def _known(layer: Any) -> bool:
    nn, kind = require_module("torch", "lab").nn, type(layer)
    if kind is nn.Linear:
        return True
    if kind is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if kind is nn.Flatten:
        return bool(layer.start_dim == 1)
    if kind in (nn.GroupNorm, nn.LayerNorm):
        return layer.weight is None
    return any(kind is getattr(nn, name) for name in APART) and not getattr(layer, "inplace", False)


def _apply(name: str, layer: Any, weights: Weights, inputs: Any) -> Any:
    torch = require_module("torch", "lab")
    call, nn = torch.nn.functional, torch.nn
    if type(layer) is nn.Linear:
        return call.linear(inputs, weights[name + "weight"], weights.get(name + "bias"))
    if type(layer) is nn.Conv2d:
        weight, bias = weights[name + "weight"], weights.get(name + "bias")
        return call.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation)
    return layer(inputs)


def _layer_gradients(layer: Any, inputs: Any, slope: Any) -> list[Any]:
    """Weight, then bias where there is one, as in `named_parameters`."""
    torch = require_module("torch", "lab")
    count = slope.shape[0]
    if type(layer) is torch.nn.Linear:
        # (samples, places, features): a dense layer may act on several places of a sample.
        x, g = inputs.reshape(count, -1, inputs.shape[-1]), slope.reshape(count, -1, slope.shape[-1])
        weight, bias = torch.bmm(g.transpose(1, 2), x), g.sum(dim=1)
    else:
        x, g = _unfolded(layer, inputs, slope.shape[2:]), slope.flatten(2)
        weight, bias = torch.bmm(g, x.transpose(1, 2)), g.sum(dim=2)
    return [weight.flatten(1)] if layer.bias is None else [weight.flatten(1), bias]


def _unfolded(layer: Any, inputs: Any, places: Any) -> Any:
    """What each place of a convolution sees, as (samples, entries of a kernel, L).

    One strided copy: torch's own unfold starts a kernel per sample on a GPU, which took six times as long as all
    the rest together.
    """
    (down, across), (rows, columns) = layer.padding, layer.kernel_size
    x = require_module("torch", "lab").nn.functional.pad(inputs, (across, across, down, down)).contiguous()
    sample, channel, row, column = x.stride()
    (rows_apart, columns_apart), (rows_on, columns_on) = layer.dilation, layer.stride
    seen = x.as_strided(
        (x.shape[0], x.shape[1], rows, columns, *places),
        (sample, channel, row * rows_apart, column * columns_apart, row * rows_on, column * columns_on),
    )
    return seen.reshape(x.shape[0], x.shape[1] * rows * columns, -1)
