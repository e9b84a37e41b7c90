"""MVU's whole release enumerated, rejection included: mixtures over all grid vectors that are
accepted.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from core.exact.privacy_kit import rough
from core.mechanism.makers import design, table
from lab.exact.release_kit import joint, neighbours, renyi, rounded
from quietbit import Ball, Norm
from quietbit.target import Adjacency
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.dithered_cost import dithered_l2_cost, reference_row

DESIGNS = {
    "two levels": design(2, 1, 2.0),
    "three levels": table(3, 1, 2.0),
    "four levels, two bits": table(4, 2, 1.5),
}


def release(mechanism: DitheredMVU, update: Any) -> Any:
    """The law of the whole release: one number per vector of symbols."""
    cells = mechanism.design.spec.input_levels - 1
    place = (np.asarray(update) / 2 + 0.5) * cells

    def rows(levels: Any) -> list[Any]:
        return [mechanism.design.probabilities[level] for level in levels]

    def accepts(levels: Any) -> bool:
        order = mechanism.ball.norm.order
        return float(np.linalg.norm(levels / cells - 0.5, order)) <= mechanism.reach

    return rounded(place, np.minimum(np.floor(place), cells - 1).astype(int), rows, accepts)


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", DESIGNS)
def test_the_release_is_as_private_as_claimed(name: str, size: int, norm: Norm) -> None:
    ball = Ball(norm, size)
    mechanism = DitheredMVU(DESIGNS[name], ball)
    rng = np.random.default_rng(size)
    points = [ball.clip(100 * rng.normal(size=size)) for _ in range(8)]
    points += [sign * np.eye(1, size)[0] for sign in (1.0, -1.0)] + [
        0.4 * points[0],
        np.zeros(size),
    ]
    laws = [release(mechanism, point) for point in points]
    reference = [reference_row(mechanism.design)] * size
    assert np.allclose(laws[-1], joint(reference), rtol=1e-12)  # it is what a zero sends
    for adjacency in Adjacency:
        claim = mechanism.privacy(adjacency)
        for p, q in neighbours(laws, adjacency):
            for alpha in (1.1, 2.0, 16.0, 300.0):
                assert renyi(p, q, alpha) <= claim.rdp(alpha) + 1e-11 * alpha / (alpha - 1)
            if norm is Norm.L1:
                assert float(np.abs(np.log(p) - np.log(q)).max()) <= claim.epsilon(0.0) + 1e-12


def test_the_account_is_attained_by_rows() -> None:
    design = rough(5, 2, 5.0, 0)
    levels = design.spec.levels
    curve = dithered_l2_cost(design, 0.5, Adjacency.REPLACE_ONE)
    best = max(
        renyi(design.probabilities[i], design.probabilities[k], 3.0) / (levels[i] - levels[k]) ** 2
        for i, k in itertools.permutations(range(5), 2)
    )
    assert curve.rdp(3.0) == pytest.approx(best, rel=1e-10)
