import numpy as np
import pytest

import quietbit
from quietbit.mechanism.ball import Ball, Norm
from quietbit.simulate.problem import LocalPlan, clip_factors, clip_rows
from quietbit.target import Unit


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6])
def test_clipped_rows_lie_in_the_ball_exactly(norm, scale):
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((40, 501)) * scale).astype(np.float32)
    before = rows.copy()
    clip_rows(rows, norm, 0.3)
    ball = Ball(norm, 0.3, 501)
    for row, old in zip(rows, before, strict=True):
        assert ball.contains(row)
        if ball.contains(old * np.float32(1.00001)):
            np.testing.assert_array_equal(row, old)
        else:
            assert np.linalg.norm(row.astype(np.float64), norm.order) > 0.3 * (1 - 1e-5)


def test_zero_rows_stay_zero():
    rows = np.zeros((2, 5), dtype=np.float32)
    clip_rows(rows, Norm.L2, 1.0)
    assert not rows.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused(bad):
    rows = np.zeros((2, 5), dtype=np.float32)
    rows[1, 2] = bad
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        clip_rows(rows, Norm.L2, 1.0)
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        clip_factors([1.0, bad], 1.0)


@pytest.mark.parametrize(
    "given",
    [{"clip": 0.0}, {"clip": np.nan}, {"clip": 1e-30}, {"steps": 0}, {"rate": -1.0}, {"unit": Unit.SAMPLE, "steps": 2}],
)
def test_plans_that_make_no_sense_are_refused(given):
    with pytest.raises(quietbit.InvalidParameter):
        LocalPlan(**{"norm": Norm.L2, "clip": 1.0, **given})
