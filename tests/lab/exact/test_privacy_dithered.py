"""MVU's account against the exact laws of dithering with rejection, all outcomes enumerated."""

import itertools

import numpy as np
import pytest

from core.exact.privacy_kit import one_bit, rough
from quietbit.target import Adjacency
from quietbit_lab.baseline.dithered_cost import dithered_l1_cost, dithered_l2_cost, reference_row

ORDERS = (1.01, 1.5, 2.0, 8.0, 60.0, 1000.0)


def dithered_law(design, x, norm, radius):
    """The law of the symbols of a vector: dither, reject outside the ball, sample row by row."""
    cells = design.spec.input_levels - 1
    choices = []
    for c in x:
        index = min(int(c * cells), cells - 1)
        part = c * cells - index
        choices.append([(index, 1 - part), (index + 1, part)])
    total, mass = 0.0, 0.0
    for combination in itertools.product(*choices):
        grid = np.array([index / cells for index, _ in combination])
        weight = np.prod([chance for _, chance in combination])
        if weight == 0 or np.linalg.norm(grid - 0.5, norm) > radius + 1e-12:
            continue
        joint = np.array(1.0)
        for index, _ in combination:
            joint = np.multiply.outer(joint, design.probabilities[index])
        total, mass = total + weight * joint, mass + weight
    return None if mass == 0 else (total / mass).ravel()


def divergence(p, q, alpha):
    z = np.log(p) + (alpha - 1) * (np.log(p) - np.log(q))
    return (z.max() + np.log(np.exp(z - z.max()).sum())) / (alpha - 1)


@pytest.mark.parametrize(
    "design",
    [rough(5, 2, 5.0, 0), rough(4, 2, 5.0, 1), one_bit(3.0, 2)],
    ids=["odd", "even", "two"],
)
@pytest.mark.parametrize("norm", [1, 2])
def test_exact_mixtures_stay_below_the_account(design, norm):
    rng = np.random.default_rng(5)
    radius = 0.75 if design.spec.input_levels > 2 else (0.5 * 2 ** (1 / norm))
    laws = [dithered_law(design, 0.5 + rng.uniform(-0.5, 0.5, 2), norm, radius) for _ in range(25)]
    laws = [law for law in laws if law is not None]
    zero = dithered_law(design, (0.5, 0.5), norm, radius)
    q = reference_row(design)
    assert np.allclose(
        zero, np.multiply.outer(q, q).ravel(), rtol=1e-12
    )  # the reference is what a zero update sends
    for adjacency in Adjacency:
        others = [zero] if adjacency is Adjacency.ZERO_OUT else laws
        if norm == 1:
            epsilon = dithered_l1_cost(design, radius, adjacency).pure_epsilon()
            assert all(
                np.abs(np.log(p / other)).max() <= epsilon + 1e-12 for p in laws for other in others
            )
            continue
        curve = dithered_l2_cost(design, radius, adjacency)
        for alpha in ORDERS:
            bound = curve.rdp(alpha)
            for p, other in itertools.product(laws, others):
                assert divergence(p, other, alpha) <= bound
                assert divergence(other, p, alpha) <= bound


def test_account_is_attained_by_rows():
    design = rough(5, 2, 5.0, 0)
    levels = design.spec.levels
    curve = dithered_l2_cost(design, 0.5, Adjacency.REPLACE_ONE)
    best = max(
        divergence(design.probabilities[i], design.probabilities[k], 3.0)
        / (levels[i] - levels[k]) ** 2
        for i in range(5)
        for k in range(5)
        if i != k
    )
    assert curve.rdp(3.0) == pytest.approx(best, rel=1e-10)
