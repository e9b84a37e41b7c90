"""The account of a sum against brute force.

Everybody's inputs on grids, at random, and at the ends.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
import pytest

from quietbit.design.table import Design, DesignSpec
from quietbit.privacy.aggregate import AggregateConstant
from quietbit.target import Adjacency
from quietbit_lab.design.search import solve

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ORDERS = (1.2, 2.0, 2.4, 5.5, 16.0, 64.0)


@lru_cache
def design(epsilon: float, levels: int = 2) -> Design:
    return solve(DesignSpec(levels, 1, epsilon), cache=False)


@lru_cache
def constant(epsilon: float, clients: int, adjacency: Adjacency) -> AggregateConstant:
    return AggregateConstant(design(epsilon), 0.0, 1.0, clients, adjacency)


def probability(epsilon: float, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-epsilon * (2 * np.asarray(x) - 1)))


def poisson_binomial(probabilities: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for p in probabilities:
        law = np.convolve(law, [1 - p, p])
    return law


def at_ends(others: int, low: float, high: float) -> list[np.ndarray]:
    """The laws of the others' sum with each number of them at one end, the rest at the other."""
    return [
        poisson_binomial(np.repeat([high, low], [k, others - k]))
        for k in range(0, others + 1, 1 + others // 20)
    ]


def worst(
    law: np.ndarray, p: np.ndarray, x: np.ndarray, alpha: float, adjacency: Adjacency = REPLACE
) -> float:
    """The largest D_alpha/(x - x')^2 over pairs of a grid, for one law of the others."""
    p = p[:, None]
    logs = np.log((1 - p) * np.append(law, 0.0) + p * np.concatenate(([0.0], law)))
    fixed = [len(x) // 2] if adjacency is ZERO else range(len(x))
    best = 0.0
    for i in fixed:
        gap = (x - x[i]) ** 2
        keep = gap > 1e-4
        for e in (alpha, 1 - alpha):  # the pair both ways round
            moment = np.exp(e * logs + (1 - e) * logs[i]).sum(axis=1)
            best = max(best, float((np.log(moment[keep]) / (alpha - 1) / gap[keep]).max()))
    return best


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    ("epsilon", "clients"),
    [
        (0.5, 2),
        (1.0, 3),
        pytest.param(2.0, 6, marks=pytest.mark.long),
        pytest.param(1.0, 12, marks=pytest.mark.long),
        pytest.param(0.25, 12, marks=pytest.mark.long),
    ],
)
def test_dominates_dense_grids_and_is_close(
    epsilon: float, clients: int, adjacency: Adjacency
) -> None:
    levels = probability(epsilon, np.linspace(0, 1, {2: 41, 3: 7, 6: 4, 12: 3}[clients]))
    inputs = combinations_with_replacement(levels, clients - 1)
    others = [poisson_binomial(np.array(each)) for each in inputs]
    ends = at_ends(clients - 1, levels[0], levels[-1])
    own, fine = np.linspace(0, 1, 13), np.linspace(0, 1, 101)
    own_p, fine_p = probability(epsilon, own), probability(epsilon, fine)
    certified = constant(epsilon, clients, adjacency)
    for alpha in ORDERS:
        bound = certified.upper(alpha)
        assert max(worst(law, own_p, own, alpha, adjacency) for law in others) <= bound
        found = max(worst(law, fine_p, fine, alpha, adjacency) for law in ends)
        assert found <= bound <= 1.02 * found, (alpha, bound / found)
        assert found <= certified(alpha) <= 1.1 * found


@pytest.mark.parametrize("alpha", [1.5, 8.0, 64.0])
def test_dominates_random_inputs_of_a_hundred(alpha: float) -> None:
    rng = np.random.default_rng(8)
    inputs = [*rng.random((4, 99)), *rng.integers(0, 2, (4, 99)).astype(float)]
    own = np.linspace(0, 1, 21)
    p = probability(1.0, own)
    bound = constant(1.0, 100, REPLACE).upper(alpha)
    laws = [poisson_binomial(probability(1.0, x)) for x in inputs]
    assert max(worst(law, p, own, alpha) for law in laws) <= bound
    best = max(worst(law, p, own, alpha) for law in at_ends(99, p[0], p[-1]))
    assert best <= bound <= 1.02 * best


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("epsilon", "most"), [(0.25, 1.03), (1.0, 1.30)])
def test_a_thousand_clients_nearly_reach_the_ideal(
    epsilon: float, most: float, adjacency: Adjacency
) -> None:
    certified = constant(epsilon, 1000, adjacency)
    for alpha in (2, 2.5, 3, 5, 23, 64):
        alone = alpha * epsilon**2 / 2
        assert 1 < 1000 * certified.upper(alpha) / alone <= most
        assert 1000 * certified(alpha) / alone <= most


def test_more_levels_are_covered_too() -> None:
    table = design(1.0, 3)
    bound = AggregateConstant(table, 0.0, 1.0, 5, REPLACE).upper(4.0)
    odds = np.log(table.probabilities[:, 1] / table.probabilities[:, 0])
    x = np.linspace(0, 1, 41)
    p = 1 / (1 + np.exp(-np.interp(x, [0, 0.5, 1], odds)))
    for law in at_ends(4, p[0], p[-1]):
        assert worst(law, p, x, 4.0) <= bound


def test_grows_with_the_order_and_falls_with_the_clients() -> None:
    values = [constant(1.0, 50, ZERO).upper(alpha) for alpha in (1.01, 1.5, 2, 9, 500, 1e4)]
    assert values == sorted(values)
    # Beyond the account: one client alone, alpha eps^2 / 2.
    assert values[-1] == pytest.approx(1e4 / 2)
    falling = [constant(1.0, clients, ZERO).upper(4.0) for clients in (2, 3, 10, 200, 5000)]
    assert falling == sorted(falling, reverse=True)
