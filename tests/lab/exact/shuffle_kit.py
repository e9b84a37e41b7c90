"""Shuffles of small crowds, enumerated in rational numbers: what the bounds are held against."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import mpmath

Row = tuple[Fraction, ...]
Law = dict[tuple[int, ...], Fraction]


def power_of_e(epsilon: float) -> Fraction:
    """e^epsilon to fifty digits."""
    with mpmath.workdps(50):
        return Fraction(str(mpmath.nstr(mpmath.exp(mpmath.mpf(epsilon)), 48, strip_zeros=False)))


def histograms(rows: Sequence[Row], before: Law | None = None) -> Law:
    """The law of how often each output occurs, when everyone releases once, after those of
    ``before``.
    """
    law: Law = {(0,) * len(rows[0]): Fraction(1)} if before is None else before
    for row in rows:
        after: Counter[tuple[int, ...]] = Counter()
        for counts, mass in law.items():
            for place, chance in enumerate(row):
                after[(*counts[:place], counts[place] + 1, *counts[place + 1 :])] += mass * chance
        law = dict(after)
    return law


def hockey_stick(first: Law, second: Law, factor: Fraction) -> Fraction:
    """The sum of (P - factor Q)_+."""
    zero = Fraction(0)
    return sum(
        (max(zero, mass - factor * second.get(place, zero)) for place, mass in first.items()), zero
    )


def largest_ratio(rows: Sequence[Row]) -> float:
    """The epsilon between any two of these rows, rounded up."""
    worst = max(a / b for left in rows for right in rows for a, b in zip(left, right, strict=True))
    return math.nextafter(math.log(worst), math.inf)


def transcripts(
    order: Sequence[tuple[int, Fraction]] | None,
    clients: int,
    law: Callable[[tuple[int, ...], int], Row],
) -> Law:
    """The law of all outputs in turn; ``law(prefix, client)`` is that of the client who comes next.

    ``order``: permutations by number with their probabilities; all alike where None.
    """
    permutations = list(itertools.permutations(range(clients)))
    alike = [(k, Fraction(1, len(permutations))) for k in range(len(permutations))]
    chosen = alike if order is None else order
    whole: Counter[tuple[int, ...]] = Counter()
    for number, weight in chosen:
        paths: Law = {(): weight}
        for client in permutations[number]:
            after: Counter[tuple[int, ...]] = Counter()
            for prefix, mass in paths.items():
                for output, chance in enumerate(law(prefix, client)):
                    after[(*prefix, output)] += mass * chance
            paths = dict(after)
        whole.update(paths)
    return dict(whole)
