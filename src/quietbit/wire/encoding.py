"""From an update to packed codes: clipped and randomised on the way, straight into the payload.

Idea     the norm is measured once; its factor is then applied wherever the mechanism reads the update, so no
         clipped copy exists. The interpolated mechanism samples and packs in one pass of the kernel; noisy
         floats and their signs go through in chunks; every other mechanism clips, encodes and packs.
Symbols  factor <= 1: factor * update, as a vector of real numbers, lies in the mechanism's ball.

An update inside the ball, and not within 2^-46 of its surface, gives the codes of `Mechanism.encode` for the
same words, whichever way is taken; closer, the factor may fall short of 1 by the norm's own uncertainty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.kernel.base import Kernel
from quietbit.kernel.chunks import Flat
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.gaussian import Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.laplace import Laplace
from quietbit.mechanism.sign import Sign
from quietbit.wire.payload import Body, pack_codes

__all__ = ["randomise"]

CHUNK = 1 << 18  # a multiple of eight, so that chunks of signs begin at whole bytes
ROUNDING = 2.0**-50  # more than the product of two doubles loses


def randomise(mechanism: Mechanism, parts: list[NDArray[Any]], rng: RandomBits, kernel: Kernel, out: Body) -> None:
    """Fill ``out`` with the packed codes of the parts' concatenation, clipped to the mechanism's ball."""
    if isinstance(mechanism, InterpolatedMVU):
        factor = _factor(mechanism, parts, kernel)
        kernel.sample_packed(mechanism.sampler, parts, rng, out, factor=factor, verified=True)
    elif isinstance(mechanism, Gaussian | Laplace | Sign):
        _add_noise(mechanism, parts, rng, kernel, out)
    else:
        joined = _joined(parts)
        pack_codes(mechanism.encode(mechanism.domain.clip(joined), rng), mechanism.bits, out)


def _factor(mechanism: Mechanism, parts: list[NDArray[Any]], kernel: Kernel, margin: float = 0.0) -> float:
    ball = mechanism.domain
    norm = kernel.norm(parts, ball.norm.order)
    factor = clip_factor(norm, ball.radius)
    return clip_factor(norm, ball.radius * (1 - margin)) if factor < 1.0 and margin else factor


def _add_noise(
    mechanism: Gaussian | Laplace | Sign,
    parts: list[NDArray[Any]],
    rng: RandomBits,
    kernel: Kernel,
    out: Body,
) -> None:
    inner = mechanism.inner if isinstance(mechanism, Sign) else mechanism
    # The products are rounded to doubles here: the margin keeps the rounded vector in the ball too.
    factor, flat = _factor(mechanism, parts, kernel, ROUNDING), Flat.of(parts)
    block = rng.draw(flat.size)
    for start in range(0, flat.size, CHUNK):
        stop = min(flat.size, start + CHUNK)
        noisy = inner.noisy(flat.piece(start, stop).astype(np.float64) * factor, block, start)
        if isinstance(mechanism, Sign):
            out[start // 8 : (stop + 7) // 8] = np.packbits(noisy >= 0, bitorder="little")
        else:
            out[4 * start : 4 * stop] = noisy.astype("<f4").view(np.uint8)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts as one array: float32, or float64 where one of them is."""
    flat = Flat.of(parts)
    if len(parts) == 1 and parts[0].dtype != np.uint16:
        return parts[0].reshape(-1)
    return flat.piece(0, flat.size)
