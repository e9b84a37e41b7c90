"""From a solver's result to the stored doubles: rows that sum to one exactly.

Idea     Sorted by size, the partial sums of a row are snapped to the spacing of the next larger entry. Then every
         partial sum, and so the last entry one minus the rest, is a double: in rational arithmetic the row sums
         to exactly one, while each entry moves by at most an ulp of its larger neighbour.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from quietbit._typing import FloatMatrix, FloatVector

__all__ = ["exact_row", "exact_rows"]


def exact_rows(table: FloatMatrix) -> FloatMatrix:
    """Make the table mirror-symmetric, with rows that sum to one exactly.

    Averaging with the reflection of levels and symbols loses nothing for a symmetric alphabet, by convexity.
    """
    mirrored = (table + table[::-1, ::-1]) / 2
    levels, symbols = table.shape
    rows = [exact_row(row) for row in mirrored[: levels // 2]]
    middle = [_palindrome(mirrored[levels // 2, : symbols // 2])] if levels % 2 else []
    return np.stack(rows + middle + [row[::-1] for row in reversed(rows)])


def _palindrome(half: FloatVector) -> FloatVector:
    side = exact_row(half) / 2
    return np.concatenate([side, side[::-1]])


def exact_row(row: FloatVector) -> FloatVector:
    """Return positive weights as probabilities whose rational sum is exactly one; each moves by an ulp or so."""
    order = np.argsort(row, kind="stable")
    ascending = [Fraction(value) for value in row[order].tolist()]
    whole = sum(ascending)
    out: FloatVector = np.empty(len(row))
    before, exact = 0.0, Fraction(0)
    for k, value in enumerate(ascending[:-1]):
        # Snap the exact partial sum, not the snapped one plus the next entry: errors do not add up.
        exact += value
        partial = float(exact / whole)
        # Twice the neighbour: it may itself move past a power of two and must stay on this grid.
        grid = np.spacing(max(2 * float(ascending[k + 1] / whole), partial))
        snapped = float(np.round(partial / grid) * grid)
        out[k] = snapped - before
        before = snapped
    out[-1] = 1.0 - before
    result: FloatVector = np.empty_like(out)
    result[order] = out
    return result
