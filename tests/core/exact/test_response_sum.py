"""The account of summed answers against the exact law of every sum of few clients, whatever the
others hold.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from quietbit.mechanism.response import SummedResponse
from quietbit.privacy.aggregate import response_sum_cost
from quietbit.target import Adjacency

ORDERS = (1.05, 1.5, 2.0, 3.7, 8.0, 32.0, 100.0)
LIES = (0.01171875, 0.125, 0.3125)


def law(probabilities):
    """The law of a sum of independent bits, by convolution."""
    found = np.ones(1)
    for p in probabilities:
        found = np.convolve(found, [1 - p, p])
    return found


def divergence(left, right, alpha):
    terms = alpha * np.log(left) + (1 - alpha) * np.log(right)
    return (float(terms.max()) + math.log(math.fsum(np.exp(terms - terms.max())))) / (alpha - 1)


def worst(lie, clients, alpha, neighbours):
    """The largest divergence over every number of others that hold a one, and over mixtures of
    theirs.
    """
    found = 0.0
    rows = [[lie] * (clients - 1 - k) + [1 - lie] * k for k in range(clients)]
    rows += [
        [0.5] * (clients - 1),
        [lie] * ((clients - 1) // 2) + [0.4] * (clients - 1 - (clients - 1) // 2),
    ]
    for others in rows:
        for left, right in neighbours:
            found = max(found, divergence(law([*others, left]), law([*others, right]), alpha))
    return found


@pytest.mark.parametrize(("clients", "lie"), list(itertools.product((2, 3, 7, 40), LIES)))
@pytest.mark.parametrize("coin", [False, True])
def test_the_curve_is_above_every_divergence_and_close_to_the_largest(clients, lie, coin):
    ends = (lie, 1 - lie)
    pairs = [(a, 0.5) for a in ends] if coin else [ends]
    cost = response_sum_cost(lie, clients, coin)
    for alpha in ORDERS:
        exact = worst(lie, clients, alpha, [pair for one in pairs for pair in (one, one[::-1])])
        claimed = cost.rdp(alpha)
        assert exact <= claimed * (1 + 1e-12)
        if (
            alpha > 1.1
        ):  # below, a larger order stands for it; between rungs of the ladder a chord does
            assert claimed <= exact * 1.05 + 1e-9
    assert cost.pure_epsilon() >= math.log(0.5 / lie if coin else (1 - lie) / lie)


def test_answers_of_many_cells_differ_in_two_bits_and_the_bound_covers_their_joint_law():
    """Three cells, four clients: the sums of all three bits together, enumerated."""
    lie, clients, alpha = 0.125, 4, 2.5
    mechanism = SummedResponse(3, lie)

    def joint(cells):
        found = np.ones((1, 1, 1))
        for cell in cells:
            each = [
                np.array([lie, 1 - lie]) if cell == place else np.array([1 - lie, lie])
                for place in range(3)
            ]
            step = np.einsum("i,j,k->ijk", *each)
            grown = np.zeros(np.array(found.shape) + 1)
            for at in np.ndindex(2, 2, 2):
                grown[tuple(slice(a, a + n) for a, n in zip(at, found.shape, strict=True))] += (
                    step[at] * found
                )
            found = grown
        return found

    exact = {Adjacency.REPLACE_ONE: 0.0, Adjacency.ZERO_OUT: 0.0}
    for others in itertools.combinations_with_replacement((0, 1, 2), clients - 1):
        for left, right in itertools.permutations((0, 1, 2, None), 2):
            which = Adjacency.ZERO_OUT if None in (left, right) else Adjacency.REPLACE_ONE
            found = divergence(
                joint([*others, left]).ravel(), joint([*others, right]).ravel(), alpha
            )
            exact[which] = max(exact[which], found)
    for which, found in exact.items():
        assert found <= mechanism.sum_privacy(clients, which).rdp(alpha)
        assert found <= mechanism.privacy(which).pure_epsilon()


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_fewer_lies_than_found_would_cost_more_than_asked(adjacency):
    found = SummedResponse.within(0.5, 1e-5, 2, adjacency, 300)
    assert 0.49 < found.sum_privacy(300, adjacency).epsilon(1e-5) <= 0.5
    assert found.sum_privacy(299, adjacency).epsilon(1e-5) > 0.49  # fewer clients hide less
    assert found.sum_privacy(100, adjacency).epsilon(1e-5) > 0.6


def test_no_exact_delta_is_above_what_is_claimed():
    """The hockey-stick divergence of the exact law, at the epsilon that the curve proves for
    delta.
    """
    lie, clients, delta = 0.0625, 60, 1e-4
    epsilon = response_sum_cost(lie, clients, False).epsilon(delta)
    for k in range(clients):
        others = law([lie] * (clients - 1 - k) + [1 - lie] * k)
        one, zero = np.convolve(others, [lie, 1 - lie]), np.convolve(others, [1 - lie, lie])
        for left, right in ((one, zero), (zero, one)):
            assert math.fsum(np.maximum(left - math.exp(epsilon) * right, 0.0)) <= delta
