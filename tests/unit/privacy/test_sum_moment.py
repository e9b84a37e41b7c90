from __future__ import annotations

import mpmath
import numpy as np
import pytest

from quietbit.privacy.sum_moment import SumMoments, bit_sum

NODES = np.linspace(0.3, 0.7, 5)
LOSS = float(np.log(7 / 3))


def exact_qbar(law: list[mpmath.mpf], alpha: float, p: float, r: float) -> mpmath.mpf:
    a, p, r = mpmath.mpf(alpha), mpmath.mpf(p), mpmath.mpf(r)
    total = mpmath.mpf(0)
    padded = [mpmath.mpf(0), *law, mpmath.mpf(0)]
    for s in range(len(law) + 1):
        q_0, q_1 = padded[s + 1], padded[s]
        x, y = (1 - p) * q_0 + p * q_1, (1 - r) * q_0 + r * q_1
        if p == r:
            total += (q_1 - q_0) ** 2 / x
        else:
            total += (x**a * y ** (1 - a) - y - a * (x - y)) / (p - r) ** 2 / (a * (a - 1) / 2)
    return total


@pytest.mark.parametrize("alpha", [1.0625, 2.0, 7.5])
def test_dominates_the_exact_sum_closely(alpha: float) -> None:
    stack = SumMoments.of([bit_sum(12, 0.7, 8, 0.3, 150.0)])
    table = stack.table(alpha, NODES, LOSS)
    rows = stack.cross(alpha, NODES, 2, LOSS)
    with mpmath.workdps(50):
        law = [mpmath.mpf(1)]
        for chance, count in ((0.7, 12), (0.3, 8)):
            for _ in range(count):
                c = mpmath.mpf(chance)
                law = [
                    (1 - c) * (law[s] if s < len(law) else 0) + c * (law[s - 1] if s else 0)
                    for s in range(len(law) + 1)
                ]
        for i, p in enumerate(NODES):
            for j, r in enumerate(NODES):
                truth = float(exact_qbar(law, alpha, float(p), float(r)))
                assert truth <= table[i, j] <= truth * (1 + 1e-8)
        np.testing.assert_allclose(rows, [table[:, 2], table[2, :]], rtol=1e-9)


@pytest.mark.parametrize("alpha", [1.3, 2.0, 3.0, 8.0])
def test_is_convex_in_each_argument_and_log_convex_in_the_order(alpha: float) -> None:
    stack = SumMoments.of([bit_sum(30, 0.7, 3, 0.3, 150.0)])
    table = stack.table(alpha, np.linspace(0.3, 0.7, 21), LOSS)
    assert (np.diff(table, 2, axis=0) > -1e-7 * table.max()).all()
    assert (np.diff(table, 2, axis=1) > -1e-7 * table.max()).all()
    between = stack.table(alpha + 0.5, NODES, LOSS)
    ends = stack.table(alpha, NODES, LOSS) + stack.table(alpha + 1, NODES, LOSS)
    assert (between <= ends / 2 * (1 + 1e-12)).all()
    product = stack.table(alpha, NODES, LOSS) * stack.table(alpha + 1, NODES, LOSS)
    assert (between**2 <= product * (1 + 1e-9)).all()


def test_several_laws_give_the_largest() -> None:
    laws = [bit_sum(k, 0.7, 200 - k, 0.3, 150.0) for k in (0, 77, 200)]
    whole = SumMoments.of(laws).table(5.0, NODES, LOSS)
    single = [SumMoments.of([law]).table(5.0, NODES, LOSS) for law in laws]
    np.testing.assert_allclose(whole, np.maximum.reduce(single), rtol=1e-10)
