"""Fewer cases than a full product: every value of every parameter meets every value of every other
one at least once.

A fault that one value causes, or two together, is found as surely as with all combinations; one
that needs three values at the same time may not be.
"""

from itertools import combinations, product


def pairs(*axes):
    """Rows of values, one of each axis, found greedily and always the same."""

    def met(row):
        return set(combinations(enumerate(row), 2))

    rows = list(product(*(range(len(axis)) for axis in axes)))
    left, kept = set().union(*map(met, rows)), []
    while left:
        kept.append(max(rows, key=lambda row: len(met(row) & left)))
        left -= met(kept[-1])
    return [tuple(axis[k] for axis, k in zip(axes, row, strict=True)) for row in sorted(kept)]
