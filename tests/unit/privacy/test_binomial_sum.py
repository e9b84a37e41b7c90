from __future__ import annotations

import mpmath
import numpy as np
import pytest

from quietbit.privacy.sum_moment import bit_sum


def exact(many: int, p: float, others: int, r: float) -> list[mpmath.mpf]:
    law = [mpmath.mpf(1)]
    for count, chance in ((many, mpmath.mpf(p)), (others, mpmath.mpf(r))):
        part = [mpmath.binomial(count, i) * chance**i * (1 - chance) ** (count - i) for i in range(count + 1)]
        law = [
            mpmath.fsum(law[i] * part[s - i] for i in range(max(0, s - count), min(s, len(law) - 1) + 1))
            for s in range(len(law) + count)
        ]
    return law


@pytest.mark.parametrize(
    ("many", "others", "reach"), [(0, 1, 150), (3, 9, 150), (60, 0, 20), (40, 80, 15), (90, 90, 60)]
)
def test_error_and_tail_are_upper_bounds(many: int, others: int, reach: float) -> None:
    with mpmath.workdps(50):
        law = exact(many, 0.73, others, 0.27)
        found = bit_sum(many, 0.73, others, 0.27, reach)
        assert found.size == many + others
        for place, value in enumerate(found.law):
            assert abs(mpmath.log(mpmath.mpf(float(value)) / law[found.first + place])) <= found.error
        outside = mpmath.fsum(law[: found.first]) + mpmath.fsum(law[found.last + 1 :])
        assert outside <= found.tail
        assert found.tail <= 1e-3 * np.exp(-reach / 2)


def test_many_bits_stay_in_a_narrow_window() -> None:
    found = bit_sum(50_000, 0.7, 49_999, 0.3, 150)
    assert len(found.law) < 6000
    assert found.tail < 1e-60
    assert found.law.sum() == pytest.approx(1, abs=1e-11)
    assert found.error < 1e-10
