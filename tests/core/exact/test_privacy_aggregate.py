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

ORDERS = (1.2, 2.0, 2.4, 5.5, 16.0, 64.0)


@lru_cache
def design(epsilon: float, levels: int = 2) -> Design:
    return solve(DesignSpec(levels, 1, epsilon), cache=False)


def probability(epsilon: float, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-epsilon * (2 * np.asarray(x) - 1)))


def poisson_binomial(probabilities: np.ndarray) -> np.ndarray:
    law = np.ones(1)
    for p in probabilities:
        law = np.convolve(law, [1 - p, p])
    return law


def worst(law: np.ndarray, epsilon: float, alpha: float, x: np.ndarray, centre_only: bool) -> float:
    """The largest D_alpha/(x - x')^2 over pairs of a grid, for one law of the others."""
    p = probability(epsilon, x)[:, None]
    whole = (1 - p) * np.append(law, 0.0) + p * np.concatenate(([0.0], law))
    logs = np.log(whole)
    place = np.arange(len(x)) if not centre_only else np.array([len(x) // 2])
    best = 0.0
    for i in place:
        for e in (alpha, 1 - alpha):  # the pair both ways round
            moment = np.exp(e * logs + (1 - e) * logs[i]).sum(axis=1)
            gap = (x - x[i]) ** 2
            keep = gap > 1e-4
            best = max(best, float((np.log(moment[keep]) / (alpha - 1) / gap[keep]).max()))
    return best


@pytest.mark.parametrize("adjacency", list(Adjacency))
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
    constant = AggregateConstant(design(epsilon), 0.0, 1.0, clients, adjacency)
    levels = np.linspace(0, 1, {2: 41, 3: 7, 6: 4, 12: 3}[clients])
    own = np.linspace(0, 1, 13)
    others = [
        poisson_binomial(probability(epsilon, np.array(inputs)))
        for inputs in combinations_with_replacement(levels, clients - 1)
    ]
    ends = [
        poisson_binomial(probability(epsilon, np.repeat([1.0, 0.0], [k, clients - 1 - k])))
        for k in range(clients)
    ]
    fine = np.linspace(0, 1, 101)
    for alpha in ORDERS:
        bound = constant.upper(alpha)
        found = max(
            worst(law, epsilon, alpha, own, adjacency is Adjacency.ZERO_OUT) for law in others
        )
        assert found <= bound
        found = max(
            worst(law, epsilon, alpha, fine, adjacency is Adjacency.ZERO_OUT) for law in ends
        )
        assert found <= bound <= 1.02 * found, (alpha, bound / found)
        assert found <= constant(alpha) <= 1.1 * found


def test_dominates_random_inputs_of_a_hundred() -> None:
    rng = np.random.default_rng(8)
    constant = AggregateConstant(design(1.0), 0.0, 1.0, 100, Adjacency.REPLACE_ONE)
    own = np.linspace(0, 1, 21)
    inputs = [rng.random(99) for _ in range(4)] + [
        rng.integers(0, 2, 99).astype(float) for _ in range(4)
    ]
    for alpha in (1.5, 8.0, 64.0):
        found = [
            worst(poisson_binomial(probability(1.0, x)), 1.0, alpha, own, False) for x in inputs
        ]
        assert max(found) <= constant.upper(alpha)
        ends = [np.repeat([1.0, 0.0], [k, 99 - k]) for k in (0, 20, 50, 99)]
        best = max(
            worst(poisson_binomial(probability(1.0, x)), 1.0, alpha, own, False) for x in ends
        )
        assert best <= constant.upper(alpha) <= 1.02 * best


@pytest.mark.parametrize(("epsilon", "most"), [(0.25, 1.03), (0.5, 1.08), (1.0, 1.30)])
def test_a_thousand_clients_nearly_reach_the_ideal(epsilon: float, most: float) -> None:
    for adjacency in Adjacency:
        constant = AggregateConstant(design(epsilon), 0.0, 1.0, 1000, adjacency)
        for alpha in (2, 2.5, 3, 5, 10, 23, 37, 50, 64):
            alone = alpha * epsilon**2 / 2
            assert 1 < 1000 * constant.upper(alpha) / alone <= most
            assert 1000 * constant(alpha) / alone <= most


def test_more_levels_are_covered_too() -> None:
    table = design(1.0, 3)
    bound = AggregateConstant(table, 0.0, 1.0, 5, Adjacency.REPLACE_ONE).upper(4.0)
    odds = np.log(table.probabilities[:, 1] / table.probabilities[:, 0])
    x = np.linspace(0, 1, 41)
    p = 1 / (1 + np.exp(-np.interp(x, [0, 0.5, 1], odds)))
    for k in range(5):
        law = poisson_binomial(np.repeat([p[-1], p[0]], [k, 4 - k]))
        whole = (1 - p[:, None]) * np.append(law, 0.0) + p[:, None] * np.concatenate(([0.0], law))
        moment = np.einsum("is,js->ij", whole**4, whole**-3.0)
        gap = np.subtract.outer(x, x) ** 2
        assert (np.log(moment[gap > 0]) / 3 / gap[gap > 0]).max() <= bound


def test_grows_with_the_order_and_falls_with_the_clients() -> None:
    values = [
        AggregateConstant(design(1.0), 0.0, 1.0, 50, Adjacency.ZERO_OUT).upper(alpha)
        for alpha in (1.01, 1.5, 2, 9, 500, 1e4)
    ]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(
        1e4 / 2
    )  # beyond the account: one client alone, alpha eps^2 / 2
    falling = [
        AggregateConstant(design(1.0), 0.0, 1.0, n, Adjacency.ZERO_OUT).upper(4.0)
        for n in (2, 3, 10, 200, 5000)
    ]
    assert falling == sorted(falling, reverse=True)
