"""GroupNorm in place of BatchNorm.

Idea     BatchNorm mixes samples, and records means and variances of the data, which noise would
         make negative. GroupNorm normalises every example separately, records nothing, and takes
         over BatchNorm's weights.
Symbols  c channels; g groups, a divisor of c with at least `CHANNELS` channels in each if possible.
Source   Wu and He (ECCV 2018), Group Normalization, of which instance normalisation is the case g =
         c.
"""

from __future__ import annotations

import copy
from typing import Any

from quietbit.errors import check_int, require, require_module

__all__ = ["group_norm"]

GROUPS = 32
CHANNELS = 4  # with one channel per group, a feature without pixels would be normalised to zero


def group_norm(model: Any, groups: int = GROUPS) -> Any:
    """Copy a torch model with GroupNorm in place of every BatchNorm.

    Layers that record statistics of the data (any BatchNorm, InstanceNorm that tracks them) are
    replaced, all others copied; weights, types and devices stay the same. Use it where the model is
    made, on the server and on clients alike.

    Args:
        model: a ``torch.nn.Module``.
        groups: the largest number of groups of channels per layer.
    """
    torch: Any = require_module("torch", "torch")
    require(isinstance(model, torch.nn.Module), "model", type(model).__name__, "a torch.nn.Module")
    most = check_int(groups, "groups", 1)
    lazy_kind = torch.nn.modules.lazy.LazyModuleMixin
    for name, module in model.named_modules():
        lazy = isinstance(module, lazy_kind) and module.has_uninitialized_params()
        require(
            not lazy,
            f"layer {name!r}",
            type(module).__name__,
            "initialised",
            "run a batch through the model first",
        )
    replaced: dict[int, Any] = {}  # a layer used in two places stays one layer
    return _converted(torch.nn, copy.deepcopy(model), most, "model", replaced)


def _converted(nn: Any, module: Any, most: int, path: str, replaced: dict[int, Any]) -> Any:
    """Return the module with its layers replaced; ``replaced`` has those already done, by id."""
    if id(module) in replaced:
        return replaced[id(module)]
    layer = module
    if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
        layer = _group_layer(nn, module, most, path)
    replaced[id(module)] = layer
    for name, child in module.named_children():
        setattr(layer, name, _converted(nn, child, most, f"{path}.{name}", replaced))
    return layer


def _group_layer(nn: Any, old: Any, most: int, path: str) -> Any:
    """Return a GroupNorm with the weights of a layer that records statistics."""
    channels = int(old.num_features)
    flat = isinstance(old, nn.BatchNorm1d)
    rule = "at least 2 to be normalised without a batch"
    require(channels > 1 or not flat, f"channels of {path}", channels, rule)
    if isinstance(old, nn.modules.instancenorm._InstanceNorm):
        count = channels
    elif flat:  # features without pixels are normalised over all channels together
        count = 1
    else:
        divisors = [g for g in range(1, min(channels, most) + 1) if channels % g == 0]
        count = max((g for g in divisors if channels // g >= CHANNELS), default=1)
    new = nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight = old.weight
        new.bias = old.bias
    return new.train(old.training)
