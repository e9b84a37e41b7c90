"""Torch models that train privately: gradients of single samples, and GroupNorm in place of BatchNorm.

Idea     one backward pass brings, for every layer, its input and the gradient at its output, sample by sample: the
         gradients of its parameters are their products. A model with a layer of another kind goes through
         `torch.func.vmap`. BatchNorm mixes samples, and records means and variances of the data, which noise would make
         negative; GroupNorm normalises every example separately, records nothing, and takes over its weights.
Symbols  n samples of a chunk; a layer as a product: inputs A (n, t, i), gradients at the output B (n, t, o), a
         sample's gradient B^T A. c = channels; g = groups, a divisor of c with at least `CHANNELS` in each if possible.
Source   Goodfellow (2015), gradients of single examples from one pass; Wu and He (ECCV 2018), Group Normalization, of
         which instance normalisation is the case g = c.

What makes the privacy of a sample rests on each row depending on one sample alone. Layers that mix samples of a batch
are refused: known ones by their class, others because a batch of two and its halves would give different outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias
from weakref import WeakSet

from quietbit.errors import InvalidParameter, check_int, require, require_module

__all__ = ["group_norm", "sample_gradients", "samples_at_once", "trainable"]

Tensor: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], Any]
CHUNK_NUMBERS, GPU_NUMBERS = 1 << 26, 1 << 29  # of rows that exist at once, unless the caller gives a chunk
_APART: WeakSet[Any] = WeakSet()  # models that were seen to keep samples apart
GROUPS = 32
CHANNELS = 4  # with one channel per group, a feature without pixels would be normalised to zero
MIXED = 1e-3  # how far outputs of a sample may be apart, alone and in a batch, relative to their size


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
    pieces = _by_layers(torch, model, loss, inputs, targets)
    if pieces is None:
        pieces = _mapped(torch, model, loss, inputs, targets)
    count = len(inputs)
    parts = [
        pieces[name] if name in pieces else torch.zeros((count, part.numel()), device=part.device)
        for name, part in parameters.items()
    ]
    return torch.cat([part.reshape(count, -1).to(torch.float32) for part in parts], dim=1)


def _by_layers(torch: Any, model: Any, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor] | None:
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
    pieces: dict[str, Tensor] = {}
    for (name, (given, _, _)), gradient in zip(used.items(), found, strict=True):
        if gradient is not None:
            layer = layers[name]
            made = handlers[type(layer)](torch, layer, given.to(gradient.dtype), gradient)
            prefix = f"{name}." if name else ""
            pieces |= {prefix + part: made[part] for part, value in _own(layer) if value.requires_grad}
    return pieces


def _handlers(torch: Any) -> dict[type, Callable[..., dict[str, Tensor]]]:
    nn = torch.nn
    return {
        nn.Linear: _linear, nn.Conv1d: _convolution, nn.Conv2d: _convolution,
        nn.GroupNorm: _normalisation, nn.LayerNorm: _normalisation,
    }  # fmt: skip


def _linear(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    if gradient.dim() == 2:
        return {"weight": gradient[:, :, None] * given[:, None, :], "bias": gradient}
    a, b = given.flatten(1, -2), gradient.flatten(1, -2)
    return {"weight": torch.bmm(b.transpose(1, 2), a), "bias": b.sum(dim=1)}


def _convolution(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    flat = given.dim() == 3
    if flat:
        given = given[:, :, None]
    sides = [(1, *value) if flat else tuple(value) for value in (layer.kernel_size, layer.dilation, layer.stride)]
    tall, wide = (0, *layer.padding) if flat else tuple(layer.padding)
    # Copied as one view of what every place sees: torch's own unfold starts a kernel per sample on a GPU.
    padded, (size, apart, step) = torch.nn.functional.pad(given, (wide, wide, tall, tall)), sides
    places = [(padded.shape[2 + i] - apart[i] * (size[i] - 1) - 1) // step[i] + 1 for i in (0, 1)]
    sample, channel, row, column = padded.stride()
    strides = (sample, channel, row * apart[0], column * apart[1], row * step[0], column * step[1])
    patches = padded.as_strided((*padded.shape[:2], *size, *places), strides)
    count, groups, b = given.shape[0], layer.groups, gradient.flatten(2)
    a = patches.reshape(count * groups, -1, b.shape[-1])
    rows = torch.bmm(b.reshape(count * groups, -1, b.shape[-1]), a.transpose(1, 2))
    return {"weight": rows.reshape(count, *layer.weight.shape), "bias": b.sum(dim=2)}


def _normalisation(torch: Any, layer: Any, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    functional = torch.nn.functional
    if isinstance(layer, torch.nn.GroupNorm):
        scaled = functional.group_norm(given, layer.num_groups, eps=layer.eps) * gradient
        return {"weight": scaled.flatten(2).sum(dim=2), "bias": gradient.flatten(2).sum(dim=2)}
    inner = len(layer.normalized_shape)
    scaled = functional.layer_norm(given, layer.normalized_shape, eps=layer.eps) * gradient
    middle = list(range(1, given.dim() - inner))
    return {
        name: value.sum(dim=middle) if middle else value for name, value in (("weight", scaled), ("bias", gradient))
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


def group_norm(model: Any, groups: int = GROUPS) -> Any:
    """Copy a torch model with GroupNorm in place of every BatchNorm; weights, types and devices are kept.

    Layers that record statistics of the data (any BatchNorm, InstanceNorm that tracks them) are replaced, all others
    copied. Use it where the model is made, on the server and on clients alike.

    Args:
        model: a ``torch.nn.Module``.
        groups: the largest number of groups of channels per layer.
    """
    torch: Any = require_module("torch", "torch")
    require(isinstance(model, torch.nn.Module), "model", type(model).__name__, "a torch.nn.Module")
    most = check_int(groups, "groups", 1)
    for name, module in model.named_modules():
        lazy = isinstance(module, torch.nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params()
        require(not lazy, f"layer {name!r}", "one without", "one with sizes: run a batch through the model first")
    made: dict[int, Any] = {}  # a layer used in two places stays one layer
    return _converted(torch.nn, copy.deepcopy(model), most, "model", made)


def _converted(nn: Any, module: Any, most: int, path: str, made: dict[int, Any]) -> Any:
    if id(module) in made:
        return made[id(module)]
    found = module
    if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
        found = _layer(nn, module, most, path)
    made[id(module)] = found
    for name, child in module.named_children():
        setattr(found, name, _converted(nn, child, most, f"{path}.{name}", made))
    return found


def _layer(nn: Any, old: Any, most: int, path: str) -> Any:
    channels = int(old.num_features)
    single = isinstance(old, nn.modules.instancenorm._InstanceNorm)
    flat = isinstance(old, nn.BatchNorm1d)
    require(channels > 1 or not flat, f"channels of {path}", channels, "at least 2 to be normalised without a batch")
    fitting = [g for g in range(1, min(channels, most) + 1) if channels % g == 0 and channels // g >= CHANNELS]
    # Features without pixels are normalised over all channels together.
    count = channels if single else 1 if flat else max(fitting, default=1)
    new = nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)
