"""A few signs of a vector's coefficients, kept together by one randomised response: the heart of SQKR and CLDP.

Idea     k of N coefficients, one from each of k strata, are picked by a public nonce; each is rounded at random to
         +A or -A, and the k signs are one of M = 2^k symbols, which is sent as it is or replaced by any other.
Symbols  a_j in [-A, A]: coefficients; g = (high - low)/M = (e^eps - 1)/(e^eps + M - 1): what is left of a sign on
         average; w_j: rows in stratum j, about N/k.

A symbol is e^eps times as likely as any other, and zero coefficients give the uniform law: `tilt` has the account. A
sign decodes to w_j A/g at its row and zero elsewhere, which is unbiased for the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.kernel.expand import rows, strata
from quietbit.kernel.rng import WordBlock
from quietbit.mechanism.base import Accumulator
from quietbit_lab.baseline.codebook import Expanded
from quietbit_lab.baseline.tilt import draw, subset_levels

__all__ = ["sign_accumulator", "sign_gain", "symbol_of"]

ROUNDING_STREAM, DRAW_STREAM = 0, 1


def sign_gain(bits: int, epsilon: float) -> float:
    """g: the mean of a decoded sign over that of the sign itself."""
    low, high = subset_levels(1 << bits, 1, epsilon)
    return (high - low) / (1 << bits)


def symbol_of(
    coefficients: FloatVector, reach: float, bits: int, epsilon: float, nonce: bytes, block: WordBlock
) -> int:
    """The symbol that is sent for coefficients of magnitude at most ``reach``; larger ones are cut to it."""
    kept = np.clip(coefficients[rows(nonce, bits, coefficients.size)] / reach, -1.0, 1.0)
    uniform = (block.uniform64(ROUNDING_STREAM, 0, bits) >> np.uint64(11)) * 2.0**-53
    true = int(np.packbits(uniform < (1 + kept) / 2, bitorder="little").astype(object) @ _powers(bits))
    low, high = subset_levels(1 << bits, 1, epsilon)
    densities = np.full(1 << bits, low)
    densities[true] = high
    return draw(densities, 1.0, block, DRAW_STREAM)


def _powers(bits: int) -> NDArray[np.object_]:
    return np.array([1 << (8 * place) for place in range(-(-bits // 8))], dtype=object)


def sign_accumulator(
    size: int, bits: int, max_payloads: int, finish: Callable[[FloatVector], FloatVector]
) -> Accumulator:
    """Sums of signs at their rows, each times the width of its stratum."""
    widths = np.diff(strata(bits, size)).astype(np.float64)

    def decode(nonce: bytes, number: int) -> tuple[NDArray[np.int64], FloatVector]:
        signs = np.array([1.0 if number >> place & 1 else -1.0 for place in range(bits)])
        return rows(nonce, bits, size), np.asarray(signs * widths)

    total = np.zeros(size, dtype=np.int64)
    return Expanded(decode, bits, float(widths.max()), max_payloads, total, finish)
