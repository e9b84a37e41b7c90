"""Clip and sample in one call: what is sampled is what was measured.

Idea     the norm is measured once; its factor is then applied wherever the kernel reads the update, so no
         clipped copy exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.kernel.base import Kernel, Order
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.kernel.sampler import Sampler

__all__ = ["sample_clipped"]


def sample_clipped(
    kernel: Kernel, sampler: Sampler, parts: Any, order: Order, radius: float, rng: RandomBits, out: NDArray[np.uint8]
) -> None:
    """Fill ``out`` with the packed codes of the parts' concatenation, clipped to the ball of that radius."""
    factor = clip_factor(kernel.norm(parts, order), radius)
    kernel.sample_packed(sampler, parts, rng, out, factor=factor, verified=True)
