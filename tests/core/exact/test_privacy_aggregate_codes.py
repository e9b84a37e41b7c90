"""Sums of codes of several bits against brute force: others anywhere, pairs on a grid."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest

from quietbit.design.closed_form import binomial_design
from quietbit.design.solve import solve
from quietbit.design.table import Design, DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.privacy.aggregate import aggregate_cost
from quietbit.target import Adjacency
from refusals import refuses


def code_law(epsilon: float, count: int, x: float) -> np.ndarray:
    p = 1 / (1 + math.exp(-epsilon / count * (2 * x - 1)))
    return np.array([math.comb(count, j) * p**j * (1 - p) ** (count - j) for j in range(count + 1)])


def worst(
    others: list[float], epsilon: float, count: int, alpha: float, adjacency: Adjacency
) -> float:
    law = np.ones(1)
    for x in others:
        law = np.convolve(law, code_law(epsilon, count, x))
    own = np.linspace(0, 1, 13)
    logs = np.log([np.convolve(law, code_law(epsilon, count, x)) for x in own])
    best = 0.0
    for i in range(13) if adjacency is Adjacency.REPLACE_ONE else [6]:
        for e in (alpha, 1 - alpha):
            moment = np.exp(e * logs + (1 - e) * logs[i]).sum(axis=1)
            gap = np.where(own == own[i], 1.0, (own - own[i]) ** 2)
            best = max(best, float((np.log(moment) / (alpha - 1) / gap).max()))
    return best


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("bits", "epsilon", "clients"), [(2, 1.5, 3), (2, 3.0, 4), (3, 3.5, 4), (4, 4.0, 3)]
)
def test_dominates_everybody_s_inputs(
    bits: int, epsilon: float, clients: int, adjacency: Adjacency
) -> None:
    curve = aggregate_cost(binomial_design(bits, epsilon), 1.0, clients, adjacency)
    inputs = list(combinations_with_replacement(np.linspace(0, 1, 5), clients - 1))
    for alpha in (1.3, 2.0, 4.0, 16.0, 64.0):
        found = max(
            worst(list(others), epsilon, 2**bits - 1, alpha, adjacency) for others in inputs
        )
        assert found <= curve.rdp(alpha)


def test_is_tight_with_a_few_dozen_clients() -> None:
    curve = aggregate_cost(binomial_design(2, 1.5), 1.0, 60, Adjacency.ZERO_OUT)
    for alpha in (1.5, 2.0, 8.0):
        ends = ([1.0] * k + [0.0] * (59 - k) for k in (0, 10, 30))
        found = max(worst(others, 1.5, 3, alpha, Adjacency.ZERO_OUT) for others in ends)
        assert found <= curve.rdp(alpha) <= 1.03 * found


def test_c_bits_cost_c_times_one() -> None:
    one = aggregate_cost(binomial_design(1, 0.5), 1.0, 500, Adjacency.ZERO_OUT)
    three = aggregate_cost(binomial_design(2, 1.5), 1.0, 500, Adjacency.ZERO_OUT)
    for alpha in (1.5, 4.0, 20.0):
        assert 3 * one.rdp(alpha) <= three.rdp(alpha) <= 3.1 * one.rdp(alpha)


def test_the_mechanism_s_own_account_and_refusals() -> None:
    ball = Ball(Norm.L2, 1.0, 300)
    mechanism = InterpolatedMVU(binomial_design(2, 1.5), ball, 4.0, True)
    curve = mechanism.sum_privacy(200, Adjacency.ZERO_OUT)
    assert curve.epsilon(1e-5) < 0.25 * mechanism.privacy(Adjacency.ZERO_OUT).epsilon(1e-5)
    for alpha in (1.5, 8.0, 1e4):
        assert curve.rdp(alpha) <= mechanism.privacy(Adjacency.ZERO_OUT).rdp(alpha) * (1 + 1e-6)
    uneven = InterpolatedMVU(solve(DesignSpec(8, 3, 5.0)), ball)
    with refuses("alphabet"):
        uneven.sum_privacy(200, Adjacency.ZERO_OUT)
    table = binomial_design(2, 1.5)
    bent = Design(table.spec, table.probabilities, np.linspace(-1.0, 2.0, 4))
    assert (
        aggregate_cost(bent, 1.0, 5, Adjacency.ZERO_OUT).rdp(2.0) > 0
    )  # the alphabet is no matter of privacy
    rows = table.probabilities + np.array([[1e-3, -1e-3, 0, 0], [0, 0, -1e-3, 1e-3]])
    with refuses("deviation from binomial codes"):
        aggregate_cost(Design(table.spec, rows, table.alphabet), 1.0, 5, Adjacency.ZERO_OUT)
