from __future__ import annotations

import math

import numpy as np
import pytest

from quietbit.privacy.sum_moment import pair_supremum_upper


def brute(nodes: np.ndarray, q: float, centre: float | None) -> float:
    p = np.linspace(nodes[0], nodes[-1], 401)
    r = p if centre is None else np.array([centre])
    gap = np.subtract.outer(p, r)
    distance = np.subtract.outer(np.log(p / (1 - p)), np.log(r / (1 - r)))
    keep = np.abs(gap) > 1e-9
    return float((np.log1p(gap[keep] ** 2 * q) / distance[keep] ** 2).max())


@pytest.mark.parametrize("q", [1e-4, 1.0, 300.0, 1e6])
@pytest.mark.parametrize("ends", [(0.3, 0.7), (0.02, 0.4)])
def test_is_the_supremum_for_a_flat_table(q: float, ends: tuple[float, float]) -> None:
    nodes = np.linspace(*ends, 9)
    found = pair_supremum_upper(nodes, [(np.full((9, 9), q), 1.0)], math.inf, None)
    assert brute(nodes, q, None) <= found <= 1.003 * max(brute(nodes, q, None), _local(nodes, q))
    row = pair_supremum_upper(nodes, [(np.full((2, 9), q), 1.0)], math.inf, 4)
    assert brute(nodes, q, float(nodes[4])) <= row <= found * (1 + 1e-9)


def _local(nodes: np.ndarray, q: float) -> float:
    """The limit of equal inputs: Q (p (1 - p))^2 where that is largest."""
    p = min(max(0.5, nodes[0]), nodes[-1])
    return float(q * (p * (1 - p)) ** 2)


def test_a_table_with_holes_bounds_nothing() -> None:
    table = np.full((9, 9), 1.0)
    table[3, 4] = math.nan
    assert pair_supremum_upper(np.linspace(0.3, 0.7, 9), [(table, 1.0)], math.inf, None, 2000) == math.inf
