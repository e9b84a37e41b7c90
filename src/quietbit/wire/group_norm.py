"""BatchNorm to GroupNorm: a torch model whose state is parameters alone, so that all of it can be trained privately.

Idea     BatchNorm records means and variances of the data as it trains. They are not gradients: noise makes a variance
         negative, and without them the model cannot be evaluated. GroupNorm normalises every example separately,
         records nothing, and takes over BatchNorm's weights.
Symbols  c = channels; g = groups, a divisor of c with at least `CHANNELS` channels in each where c allows.
Source   Wu and He (ECCV 2018), Group Normalization. Instance normalisation is GroupNorm with g = c.
"""

from __future__ import annotations

import copy
from typing import Any

from quietbit.errors import check_int, require, require_module

__all__ = ["group_norm"]

GROUPS = 32
CHANNELS = 4  # with one channel per group, a feature without pixels would be normalised to zero


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
    # Features without pixels are normalised over all channels together.
    count = channels if single else 1 if flat else _groups(channels, most)
    new = nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def _groups(channels: int, most: int) -> int:
    """Return the largest number of groups of equal size within the limits."""
    fitting = [g for g in range(1, min(channels, most) + 1) if channels % g == 0 and channels // g >= CHANNELS]
    return max(fitting, default=1)
