"""Which numbers of a causal language model are trained: chosen by name, or added to it.

Idea     a model of the Hugging Face kind stays as it is; hooks add a bias after every block, or the
         second factor of a low-rank change beside chosen linear layers. The first factor is drawn
         from a seed and never sent. Patterns then say which parameters are trained; everything else
         is frozen and never leaves the node.
Symbols  H: width of a token; r: rank of a low-rank change, W x + B (A x), of which B is trained and
         A is fixed.
"""

from __future__ import annotations

import math
import zlib
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

BIAS = "residual_bias"
FACTOR = "lora_b"
Arrays = dict[str, NDArray[np.float32]]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks in order: its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(
            "The model has no list of blocks: add adapters to modules of your own instead."
        )
    return list(max(lists, key=lambda modules: len(list(modules))))


def add_biases(model: nn.Module) -> None:
    """Add a vector of zeros after every block, named ``residual_bias``."""
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    for block in blocks(model):
        block.register_parameter(BIAS, nn.Parameter(torch.zeros(width)))
        block.register_forward_hook(_with_bias)


def _with_bias(block: nn.Module, inputs: Any, output: Any) -> Any:
    bias = getattr(block, BIAS)
    if isinstance(output, tuple):
        return (output[0] + bias, *output[1:])
    return output + bias


def add_factors(model: nn.Module, patterns: str, rank: int, seed: int) -> None:
    """Add ``lora_b``, zeros of size outputs x rank, to every linear layer whose name matches.

    The fixed factor follows from the seed and the layer's name, so that server and nodes have the
    same one.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or not matches(name, patterns):
            continue
        source = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
        fixed = torch.randn((rank, module.in_features), generator=source) / math.sqrt(
            module.in_features
        )
        module.register_buffer("lora_a", fixed, persistent=False)
        module.register_parameter(FACTOR, nn.Parameter(torch.zeros(module.out_features, rank)))
        module.register_forward_hook(_with_factor)


def _with_factor(module: nn.Module, inputs: Any, output: Any) -> Any:
    low = torch.nn.functional.linear(inputs[0], module.lora_a)  # type: ignore[arg-type]
    return output + torch.nn.functional.linear(low, getattr(module, FACTOR))


def matches(name: str, patterns: str) -> bool:
    """Return whether a name matches one of the patterns, which have commas between them.

    >>> matches("model.layers.3.residual_bias", "*.residual_bias,*norm.weight")
    True
    """
    return any(fnmatch(name, pattern.strip()) for pattern in patterns.split(",") if pattern.strip())


def count(model: nn.Module, patterns: str) -> int:
    """Return how many numbers the parameters have whose names match."""
    named = model.named_parameters()
    return sum(parameter.numel() for name, parameter in named if matches(name, patterns))


def choose(model: nn.Module, patterns: str) -> None:
    """Freeze everything but the parameters whose names match."""
    if count(model, patterns) == 0:
        raise ValueError(f"No parameter's name matches {patterns!r}: see model.named_parameters().")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(matches(name, patterns))


def trained_arrays(model: nn.Module) -> Arrays:
    """Return the trained parameters by name; frozen weights are not among them."""
    return {
        name: parameter.detach().cpu().float().numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def frozen_bytes(model: nn.Module) -> int:
    """Return the size of the whole model in 32-bit floats: what sending it would take."""
    return 4 * sum(parameter.numel() for parameter in model.parameters())
