"""Means of a cohort's releases: vector mechanism and kept coordinates, from their laws.

Idea     a shortcut for experiments: the law of what `Uplink.receive` makes of a cohort's payloads,
         without payloads (`means.py` has the mechanisms that act coordinate by coordinate). A
         client's seed is never looked for; z is drawn from the density that an accepted seed has.
         Tests hold the moments against `Uplink.send`. Many cohorts at once, each of its own
         training, cost hardly more than one.
Symbols  rows: n clipped updates in clips, (n, d), or those of G cohorts, (G, n, d),
         which give (G, d); p = d padded; k kept rows; as in `mechanism/vector.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import hadamard
from scipy.special import ndtr

from quietbit.errors import require_module
from quietbit.kernel.transform import padded_size, signs
from quietbit.mechanism.rotation import Rotation
from quietbit.mechanism.vector import VectorMVU

__all__ = [
    "along_of",
    "hadamard_matrix",
    "kept_rows",
    "put_back",
    "rotated",
    "rotated_back",
    "vector_mean",
]

torch: Any = require_module("torch", "lab[torch]")


def vector_mean(rows: Any, mechanism: VectorMVU, generator: Any) -> Any:
    """Return the decoded mean of the vector mechanism's releases of rows in the unit ball."""
    flat = rows.reshape(-1, rows.shape[-1])
    if rows.dim() == 3:
        groups = rows.shape[0]
    else:
        groups = 1
    shared = None
    if mechanism.shared_rows:  # the same for all clients of a group
        width = mechanism.padded // mechanism.keep
        shared = torch.randint(
            width, (groups, mechanism.keep), generator=generator, device=rows.device
        )
        shared = (
            shared + torch.arange(mechanism.keep, device=rows.device) * width
        ).repeat_interleave(rows.shape[-2], 0)
    places, y = kept_rows(flat, mechanism.keep, mechanism.rotation_seed, generator, shared)
    length = y.norm(dim=1, keepdim=True)
    direction = y / length.clamp(min=1e-30)
    share = length.clamp(max=1.0)[:, 0].double()
    along = along_of(mechanism, share, generator).to(y.dtype)
    z = torch.randn(y.shape, generator=generator, device=y.device)
    z += (along - (z * direction).sum(dim=1))[:, None] * direction
    mean = put_back(
        z / mechanism.profile.gain_lower, places, rows.shape[-1], mechanism.rotation_seed, groups
    )
    return mean if rows.dim() == 3 else mean[0]


def kept_rows(
    rows: Any, keep: int, seed: int, generator: Any, places: Any = None
) -> tuple[Any, Any]:
    """Return (places, values) of k coordinates of each rotated row, clipped to the unit ball.

    With ``places`` all rows keep those.
    """
    count = rows.shape[0]
    size = padded_size(rows.shape[1])
    rotated = _rotated(rows, size, seed)
    width = size // keep
    if places is None:
        offsets = torch.randint(width, (count, keep), generator=generator, device=rows.device)
        places = offsets + torch.arange(keep, device=rows.device) * width
    y = rotated.gather(1, places.expand(count, keep)) * math.sqrt(size / keep)
    return places, y / y.norm(dim=1, keepdim=True).clamp(min=1.0)


def put_back(values: Any, places: Any, dimension: int, seed: int, groups: int = 1) -> Any:
    """Return the means of ``groups`` groups of kept rows, scattered and rotated back."""
    count, keep = values.shape
    size = padded_size(dimension)
    group = torch.arange(groups, device=values.device).repeat_interleave(count // groups)
    total = torch.zeros(groups * size, device=values.device, dtype=values.dtype)
    total.index_add_(0, (places + group[:, None] * size).reshape(-1), values.reshape(-1))
    total *= math.sqrt(size / keep) / (count // groups)
    rotated = _hadamard(total.reshape(groups, size)) * _sign_tensor(size, seed, str(total.device))
    return rotated[:, :dimension]


def along_of(mechanism: VectorMVU, share: Any, generator: Any) -> Any:
    """<u, z> of every client: a step by its mass, then a place inside it."""
    edges = mechanism.profile.edges
    levels = mechanism.profile.levels
    ends = torch.tensor(ndtr(np.concatenate(([-np.inf], edges, [np.inf]))), device=share.device)
    masses = ends[1:] - ends[:-1]
    heights = torch.tensor(levels, device=share.device)
    weights = ((1 - share)[:, None] + share[:, None] * heights) * masses
    sums = weights.cumsum(dim=1)
    uniform = torch.rand(
        share.shape[0], generator=generator, device=share.device, dtype=torch.float64
    )
    step = torch.searchsorted(sums, (uniform * sums[:, -1])[:, None])[:, 0].clamp(
        max=levels.size - 1
    )
    inside = torch.rand(
        share.shape[0], generator=generator, device=share.device, dtype=torch.float64
    )
    place = (ends[step] + inside * masses[step]).clamp(1e-16, 1 - 1e-16)
    return torch.special.ndtri(place)


def rotated(rows: Any, rotation: Rotation) -> Any:
    """Rows (..., d) rotated in blocks, as `mechanism/rotation.py` has it."""
    first, last = _block_signs(rows.shape[-1], rotation, str(rows.device))
    turned = rows * first
    block = rotation.block
    blocks = rows.shape[-1] // block * block
    turned[..., :blocks] = _in_blocks(turned[..., :blocks], block)
    if last is not None:
        turned[..., -block:] = _in_blocks(turned[..., -block:] * last, block)
    return turned


def rotated_back(rows: Any, rotation: Rotation) -> Any:
    """Rows (..., d) as they were before `rotated`."""
    first, last = _block_signs(rows.shape[-1], rotation, str(rows.device))
    turned = rows.clone()
    block = rotation.block
    blocks = rows.shape[-1] // block * block
    if last is not None:
        turned[..., -block:] = _in_blocks(turned[..., -block:], block) * last
    turned[..., :blocks] = _in_blocks(turned[..., :blocks], block)
    return turned * first


def _in_blocks(rows: Any, block: int) -> Any:
    return _hadamard(rows.reshape(-1, block)).reshape(rows.shape)


@lru_cache(maxsize=16)
def _block_signs(size: int, rotation: Rotation, device: str) -> tuple[Any, Any]:
    """Signs of whole blocks, 1 after them; and those of the last block where it overlaps."""
    blocks = size // rotation.block * rotation.block
    drawn = torch.tensor(
        signs(size + rotation.block, rotation.seed), dtype=torch.float32, device=device
    )
    first = drawn[:size].clone()
    first[blocks:] = 1.0
    return first, None if blocks == size else drawn[size:]


def _rotated(rows: Any, size: int, seed: int) -> Any:
    padded = torch.zeros((rows.shape[0], size), device=rows.device, dtype=rows.dtype)
    padded[:, : rows.shape[1]] = rows
    return _hadamard(padded * _sign_tensor(size, seed, str(rows.device)))


def _hadamard(rows: Any) -> Any:
    """Apply the orthonormal transform to every row, by two small Hadamard matrices."""
    count, size = rows.shape
    left = 1 << (size.bit_length() // 2)
    right = size // left
    square = rows.reshape(count, left, right)
    first = hadamard_matrix(left, str(rows.device))
    second = hadamard_matrix(right, str(rows.device))
    return (first @ (square @ second)).reshape(count, size)


@lru_cache(maxsize=16)
def hadamard_matrix(size: int, device: str) -> Any:
    """Return the orthonormal Hadamard matrix of a power of two, rows in natural order."""
    return (torch.from_numpy(hadamard(size, dtype=np.float32)) / math.sqrt(size)).to(device)


@lru_cache(maxsize=16)
def _sign_tensor(size: int, seed: int, device: str) -> Any:
    return torch.tensor(signs(size, seed), dtype=torch.float32, device=device)
