"""MVU's whole release enumerated, rejection included: mixtures over all grid vectors that are
accepted.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from core.exact.privacy_kit import rough
from core.mechanism.makers import design, table
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
    order = mechanism.ball.norm.order
    place = (np.asarray(update) / 2 + 0.5) * cells
    low = np.minimum(np.floor(place), cells - 1).astype(int)
    part = place - low
    total, law = 0.0, 0.0
    for ups in itertools.product((0, 1), repeat=len(low)):
        index = low + np.array(ups)
        length = float((np.abs(index / cells - 0.5) ** order).sum()) ** (1 / order)
        chance = math.prod(np.where(ups, part, 1 - part))
        if length > mechanism.reach or chance == 0:
            continue
        rows = [mechanism.design.probabilities[i] for i in index]
        joint = rows[0]
        for row in rows[1:]:
            joint = np.multiply.outer(joint, row)
        total, law = total + chance, law + chance * joint
    assert total >= 1 - math.exp(-0.5)  # rejection ends soon
    return np.ravel(law / total)


def renyi(p: Any, q: Any, alpha: float) -> float:
    exponent = alpha * np.log(p) + (1 - alpha) * np.log(q)
    top = exponent.max()
    return float((top + np.log(np.exp(exponent - top).sum())) / (alpha - 1))


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
    zero = laws[-1]
    reference = reference_row(mechanism.design)
    joint = reference
    for _ in range(size - 1):
        joint = np.multiply.outer(joint, reference)
    assert np.allclose(zero, joint.ravel(), rtol=1e-12)  # the reference is what a zero sends
    for adjacency in Adjacency:
        claim = mechanism.privacy(adjacency)
        pairs = itertools.permutations(laws, 2)
        if adjacency is Adjacency.ZERO_OUT:
            pairs = itertools.chain(((law, zero) for law in laws), ((zero, law) for law in laws))
        for p, q in pairs:
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
        for i in range(5)
        for k in range(5)
        if i != k
    )
    assert curve.rdp(3.0) == pytest.approx(best, rel=1e-10)
