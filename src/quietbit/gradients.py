"""Gradients of single samples in torch, each clipped by itself, and their sum.

Idea     one backward pass brings, for every layer, its input and the gradient at its output, sample by sample. From
         these follow the length of every sample's gradient and, once the clip factors are known, the layer's clipped
         sum, without a second backward pass. A model with a layer of another kind goes through `torch.func.vmap`.
Symbols  n samples of a chunk; a layer as a product: inputs A (n, t, i), gradients at the output B (n, t, o), a
         sample's gradient B^T A; f: clip factors min(1, C / length).
Source   Goodfellow (2015), gradients of single examples from one pass; Bu, Wang, Zha, Karypis (2023), book-keeping.

What makes the privacy of a sample rests on each row depending on one sample alone. Layers that mix samples of a batch
are refused: known ones by their class, others because a batch of two and its halves would give different outputs.
Lengths are taken in float32 or better, whatever the precision of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias
from weakref import WeakSet

import attrs

from quietbit.errors import InvalidParameter, check_int, check_real, require, require_module

__all__ = ["clipped_sum", "private_gradient", "sample_gradients", "samples_at_once", "trainable"]

Tensor: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], Any]
CHUNK_NUMBERS, GPU_NUMBERS = 1 << 26, 1 << 29  # of rows that exist at once, unless the caller gives a chunk
_APART: WeakSet[Any] = WeakSet()  # models that were seen to keep samples apart
MIXED = 1e-3  # how far outputs of a sample may be apart, alone and in a batch, relative to their size


def private_gradient(
    model: Any, loss: Loss, batch: tuple[Any, Any], clip: float, *, expected: float, chunk: int | None = None
) -> list[Tensor]:
    """Return the sum of the batch's clipped gradients over ``expected`` samples, one tensor per trainable parameter.

    Args:
        model: a ``torch.nn.Module``; its parameters' ``grad`` is left alone.
        loss: of outputs and targets, one number per sample (``reduction="none"``).
        batch: inputs and targets; an empty batch gives zeros, which are released like any others.
        clip: the largest L2 norm of a sample's gradient.
        expected: the public number to divide by: samples of the site times the sampling rate, never the batch's size.
        chunk: samples at once; as many as fit unless given.
    """
    total = clipped_sum(model, loss, batch, clip, chunk=chunk)
    share = 1.0 / check_real(expected, "expected")
    return [part * share for part in total]


def clipped_sum(
    model: Any, loss: Loss, batch: tuple[Any, Any], clip: float, *, chunk: int | None = None
) -> list[Tensor]:
    """Return the sum over the batch of gradients clipped to ``clip``, one tensor per trainable parameter."""
    torch: Any = require_module("torch", "torch")
    radius, (inputs, targets) = check_real(clip, "clip"), batch
    parameters = trainable(model)
    total = [torch.zeros_like(part, dtype=_finer(torch, part.dtype)) for part in parameters.values()]
    count = len(inputs)
    require(len(targets) == count, "number of targets", len(targets), f"{count}, one per sample")
    if count == 0:
        return total
    _check_apart(torch, model, inputs)
    size = samples_at_once(list(parameters.values()), chunk)
    for start in range(0, count, size):
        part = slice(start, start + size)
        pieces = _pieces(torch, model, loss, inputs[part], targets[part])
        if pieces is None:
            rows = _mapped(torch, model, loss, inputs[part], targets[part])
            pieces = {name: _Rows(row) for name, row in rows.items()}
        lengths = sum(piece.squares(torch) for piece in pieces.values()).sqrt()
        _finite(torch, lengths)
        factors = radius / lengths.clamp(min=radius)
        for place, name in enumerate(parameters):
            if name in pieces:
                total[place] += pieces[name].weighted(torch, factors).reshape(total[place].shape)
    return total


def samples_at_once(parameters: list[Any], chunk: int | None) -> int:
    """Return for how many samples gradients are made at once: ``chunk``, or as many as fit the device's memory."""
    most = GPU_NUMBERS if parameters[0].is_cuda else CHUNK_NUMBERS
    return check_int(chunk or max(1, most // max(1, sum(part.numel() for part in parameters))), "chunk", 1)


def sample_gradients(model: Any, loss: Loss, batch: tuple[Any, Any]) -> Tensor:
    """Return one row per sample: its gradient, unclipped, parameters one after the other.

    For a gate that clips rows itself (`Uplink.send_samples`), and for models whose rows fit memory.
    """
    torch: Any = require_module("torch", "torch")
    inputs, targets = batch
    parameters = trainable(model)
    if len(inputs) == 0:
        return torch.zeros((0, sum(part.numel() for part in parameters.values())))
    _check_apart(torch, model, inputs)
    pieces = _pieces(torch, model, loss, inputs, targets)
    if pieces is None:
        rows = _mapped(torch, model, loss, inputs, targets)
        pieces = {name: _Rows(row) for name, row in rows.items()}
    count = len(inputs)
    parts = [
        pieces[name].rows(torch) if name in pieces else torch.zeros((count, part.numel()), device=part.device)
        for name, part in parameters.items()
    ]
    return torch.cat([part.reshape(count, -1).to(torch.float32) for part in parts], dim=1)


@attrs.frozen(eq=False)
class _Rows:
    """Gradients of one parameter as they are: (n, ...)."""

    values: Tensor

    def rows(self, torch: Any) -> Tensor:
        return self.values

    def squares(self, torch: Any) -> Tensor:
        return self.values.flatten(1).to(_finer(torch, self.values.dtype)).square().sum(dim=1)

    def weighted(self, torch: Any, factors: Tensor) -> Tensor:
        flat = self.values.flatten(1)
        return factors.to(flat.dtype) @ flat


@attrs.frozen(eq=False)
class _Outer:
    """Gradients that are products of one output gradient (n, o) and one input (n, i): never written out for a sum."""

    left: Tensor
    right: Tensor

    def rows(self, torch: Any) -> Tensor:
        return self.left[:, :, None] * self.right[:, None, :]

    def squares(self, torch: Any) -> Tensor:
        finer = _finer(torch, self.left.dtype)
        return self.left.to(finer).square().sum(dim=1) * self.right.to(finer).square().sum(dim=1)

    def weighted(self, torch: Any, factors: Tensor) -> Tensor:
        return (self.left * factors.to(self.left.dtype)[:, None]).T @ self.right


def _pieces(torch: Any, model: Any, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Any] | None:
    """Return the gradients of every parameter by layers; None where a layer is unknown or used more than once."""
    layers = {name: layer for name, layer in model.named_modules() if any(True for _ in _own(layer))}
    handlers = _handlers(torch)
    known = all(type(layer) in handlers and _plain(torch, layer) for layer in layers.values())
    shared = len({id(part) for part in model.parameters()}) < sum(len(list(_own(layer))) for layer in layers.values())
    if not known or shared:
        return None
    seen: dict[str, list[tuple[Tensor, int, Any]]] = {name: [] for name in layers}

    def watch(name: str) -> Callable[..., None]:
        def note(_: Any, given: tuple[Any, ...], output: Tensor) -> None:
            # The place in the graph, not the tensor: the next layer may write over it.
            edge = torch.autograd.graph.get_gradient_edge(output) if output.requires_grad else None
            seen[name].append((given[0].detach(), given[0]._version, edge))

        return note

    with ExitStack() as stack, torch.enable_grad():
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(watch(name)).remove)
        losses = _losses(loss, model(inputs), targets, len(inputs))
        if any(len(calls) > 1 for calls in seen.values()):
            return None
        used = {name: calls[0] for name, calls in seen.items() if calls and calls[0][2] is not None}
        if any(given._version != version for given, version, _ in used.values()):
            return None  # an input was written over after the layer had seen it
        found = torch.autograd.grad(losses.sum(), [edge for _, _, edge in used.values()], allow_unused=True)
    pieces: dict[str, Any] = {}
    for (name, (given, _, _)), gradient in zip(used.items(), found, strict=True):
        if gradient is not None:
            layer = layers[name]
            made = handlers[type(layer)](torch, layer, given.to(gradient.dtype), gradient)
            prefix = f"{name}." if name else ""
            pieces |= {prefix + part: made[part] for part, value in _own(layer) if value.requires_grad}
    return pieces


def _handlers(torch: Any) -> dict[type, Callable[..., dict[str, Any]]]:
    nn = torch.nn
    return {
        nn.Linear: _linear, nn.Conv1d: _convolution, nn.Conv2d: _convolution,
        nn.GroupNorm: _normalisation, nn.LayerNorm: _normalisation,
    }  # fmt: skip


def _linear(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Any]:
    if gradient.dim() == 2:
        return {"weight": _Outer(gradient, given), "bias": _Rows(gradient)}
    a, b = given.flatten(1, -2), gradient.flatten(1, -2)
    return {"weight": _Rows(torch.bmm(b.transpose(1, 2), a)), "bias": _Rows(b.sum(dim=1))}


def _convolution(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Any]:
    flat = given.dim() == 3
    if flat:
        given = given[:, :, None]
    sides = [(1, *value) if flat else tuple(value) for value in (layer.kernel_size, layer.dilation, layer.stride)]
    padding = (0, *layer.padding) if flat else tuple(layer.padding)
    patches = torch.nn.functional.unfold(given, sides[0], dilation=sides[1], padding=padding, stride=sides[2])
    count, groups, b = given.shape[0], layer.groups, gradient.flatten(2)
    a = patches.reshape(count * groups, -1, patches.shape[-1])
    rows = torch.bmm(b.reshape(count * groups, -1, b.shape[-1]), a.transpose(1, 2))
    return {"weight": _Rows(rows.reshape(count, *layer.weight.shape)), "bias": _Rows(b.sum(dim=2))}


def _normalisation(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Any]:
    functional = torch.nn.functional
    if isinstance(layer, torch.nn.GroupNorm):
        scaled = functional.group_norm(given, layer.num_groups, eps=layer.eps) * gradient
        return {"weight": _Rows(scaled.flatten(2).sum(dim=2)), "bias": _Rows(gradient.flatten(2).sum(dim=2))}
    inner = len(layer.normalized_shape)
    scaled = functional.layer_norm(given, layer.normalized_shape, eps=layer.eps) * gradient
    middle = list(range(1, given.dim() - inner))
    return {
        name: _Rows(value.sum(dim=middle) if middle else value)
        for name, value in (("weight", scaled), ("bias", gradient))
    }


def _mapped(torch: Any, model: Any, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Gradients of any model, by mapping over single samples."""
    wanted = {name: part.detach() for name, part in trainable(model).items()}
    fixed = {
        name: part.detach() for name, part in (*model.named_parameters(), *model.named_buffers()) if name not in wanted
    }

    def one(parameters: Any, given: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(model, {**fixed, **parameters}, (given[None],))
        return _losses(loss, output, target[None], 1).sum()

    mapped = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0), randomness="different")
    found: dict[str, Tensor] = mapped(wanted, inputs, targets)
    return found


def _losses(loss: Loss, outputs: Tensor, targets: Tensor, count: int) -> Tensor:
    values = loss(outputs, targets)
    shape = tuple(getattr(values, "shape", ()))
    if shape != (count,):
        raise InvalidParameter.of("loss", 'one number per sample (reduction="none")', f"a result of shape {shape}")
    return values


def _check_apart(torch: Any, model: Any, inputs: Tensor) -> None:
    """Refuse a model that mixes the samples of a batch."""
    for name, layer in model.named_modules():
        norm = isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        tracks = isinstance(layer, torch.nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        if norm or tracks:
            rule = "a layer that keeps samples apart; quietbit.group_norm(model) makes such a model"
            raise InvalidParameter.of(f"layer {name!r}", rule, type(layer).__name__)
    if len(inputs) < 2 or model in _APART:
        return
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            both, alone = model(inputs[:2]), torch.cat([model(inputs[:1]), model(inputs[1:2])])
    finally:
        model.train(training)
    apart = tuple(both.shape) == tuple(alone.shape) and bool(
        (both - alone).abs().max() <= MIXED * (1e-6 + alone.abs().max())
    )
    rule = "one whose output for a sample does not depend on the other samples of its batch"
    finite = bool(torch.isfinite(alone).all())
    require(apart or not finite, "model", type(model).__name__, rule)
    if finite:
        _APART.add(model)


def trainable(model: Any) -> dict[str, Any]:
    """Return a model's trainable parameters by name; refused where it has none."""
    found = {name: part for name, part in model.named_parameters() if part.requires_grad}
    require(found, "model", type(model).__name__, "one with trainable parameters")
    return found


def _own(layer: Any) -> list[tuple[str, Any]]:
    return list(layer.named_parameters(recurse=False))


def _plain(torch: Any, layer: Any) -> bool:
    """Whether a layer is of the kind its handler knows: zero padding of known size, scale and shift."""
    if isinstance(layer, torch.nn.Conv1d | torch.nn.Conv2d):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True


def _finer(torch: Any, kind: Any) -> Any:
    return torch.float64 if kind == torch.float64 else torch.float32


def _finite(torch: Any, lengths: Tensor) -> None:
    if not bool(torch.isfinite(lengths).all()):
        raise InvalidParameter("gradients must be finite for every sample of the batch, got others.")
