from __future__ import annotations

import numpy as np
import pytest

from path import decode, encode
from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.secagg.plan import SumPlan
from quietbit.secagg.server import simulate_secure_sum
from quietbit.target import Adjacency
from refusals import refuses

DESIGN = closed_design(DesignSpec(2, 1, 0.5))


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("clamp", [False, True])
def test_a_sum_is_never_worse_than_one_client(norm: Norm, clamp: bool) -> None:
    mechanism = InterpolatedMVU(DESIGN, Ball(norm, 30), 1.5, clamp)
    for adjacency in list(Adjacency)[: 1 + clamp]:
        alone, together = mechanism.privacy(adjacency), mechanism.sum_privacy(80, adjacency)
        for alpha in (1.01, 1.5, 2.5, 8.0, 300.0, 1e6):
            assert together.rdp(alpha) <= alone.rdp(alpha)
        assert together.pure_epsilon() == alone.pure_epsilon()
        assert (together * 5).epsilon(1e-5) < 0.4 * (alone * 5).epsilon(1e-5)


def test_wide_codes_are_refused() -> None:
    mechanism = InterpolatedMVU(closed_design(DesignSpec(2, 2, 1.0)), Ball(Norm.L2, 3))
    with refuses("output bits of the design", 2):
        mechanism.sum_privacy(10, Adjacency.ZERO_OUT)


def test_codes_through_masks_give_the_mean_of_the_decoded_codes() -> None:
    mechanism = InterpolatedMVU(DESIGN, Ball(Norm.L2, 9), 2.0, True, "unbiased-at-zero")
    rng = seeded_rng(4)
    codes = {i: encode(mechanism, np.full(9, 0.1 * i / 3), rng) for i in range(1, 6)}
    found = simulate_secure_sum(SumPlan(5, 3, 9, b"mean"), codes, gone_before_masking=[2])
    count = len(found.clients)
    zero, one = mechanism.values
    mean = zero + (one - zero) * found.total / count
    plain = np.mean([decode(mechanism, codes[i]) for i in found.clients], axis=0)
    np.testing.assert_allclose(mean, plain, rtol=1e-12)
