from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from quietbit.kernel.rng import seeded_rng
from quietbit_lab.baseline.noise import laplace_noise as laplace
from quietbit_lab.baseline.noise import normal_noise as normal


class FixedBlock:
    def __init__(self, rng: Any) -> None:
        self.rng = np.asarray(rng, dtype=np.uint64)

    def uniform64(self, stream: int, start: int, count: int) -> Any:
        return self.rng[start : start + count]


EDGES = [0, 2**63 - 1, 2**63, 2**64 - 1]


def test_extreme_words_give_finite_noise_of_either_sign() -> None:
    block: Any = FixedBlock(EDGES)
    for draw, largest in ((normal, 9.2), (laplace, 44.5)):
        noise = draw(block, 0, 4)
        assert np.all(np.isfinite(noise))
        assert noise[0] == -noise[2]  # the top bit is the sign, the rest the tail
        assert 0.97 * largest < abs(noise[0]) < largest
        assert abs(noise[1]) < 1e-9
        assert abs(noise[3]) < 1e-9


@pytest.mark.parametrize(("draw", "law"), [(normal, stats.norm), (laplace, stats.laplace)])
def test_noise_inverts_its_distribution_function(draw: Any, law: Any) -> None:
    block: Any = seeded_rng(1).draw(1000)
    rng = block.uniform64(0, 0, 1000)
    noise = draw(block, 0, 1000)
    tail = (rng & np.uint64(2**63 - 1)).astype(float) * 2.0**-63
    assert np.allclose(2 * law.sf(np.abs(noise)), tail, rtol=1e-9, atol=1e-15)
    assert np.array_equal(noise[200:300], draw(block, 200, 100))
