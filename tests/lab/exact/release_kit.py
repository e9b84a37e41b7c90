"""Laws of whole releases, enumerated: rounding within bounds, then a code per coordinate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from quietbit.target import Adjacency


def renyi(p: Any, q: Any, alpha: float) -> float:
    """D_alpha(p || q)."""
    return renyi_of_logs(np.log(p), np.log(q), alpha)


def renyi_of_logs(p: Any, q: Any, alpha: float) -> float:
    """D_alpha of two laws given by their logarithms."""
    exponent = p + (alpha - 1) * (p - q)
    top = exponent.max()
    return float(top + np.log(np.exp(exponent - top).sum())) / (alpha - 1)


def joint(rows: list[Any]) -> Any:
    """The law of independent codes together, one number per vector of codes."""
    return np.ravel(reduce(np.multiply.outer, rows))


def rounded(place: Any, low: Any, rows: Callable[[Any], list[Any]], accepts: Callable) -> Any:
    """The law of the codes of ``place`` after every coordinate is rounded down or up, drawn again
    until it is accepted; ``rows`` has the laws of the codes given the rounded vector.
    """
    total, law = 0.0, 0.0
    for ups in itertools.product((0, 1), repeat=len(low)):
        whole = low + np.array(ups)
        chance = math.prod(np.where(ups, place - low, 1 - (place - low)))
        if chance > 0 and accepts(whole):
            total, law = total + chance, law + chance * joint(rows(whole))
    assert total >= 1 - math.exp(-0.5)  # rejection ends soon
    return law / total


def neighbours(laws: list[Any], adjacency: Adjacency) -> Iterator[tuple[Any, Any]]:
    """Pairs of neighbours, both ways round; the last law is that of the zero update."""
    for p, q in itertools.permutations(laws, 2):
        if adjacency is Adjacency.REPLACE_ONE or p is laws[-1] or q is laws[-1]:
            yield p, q
