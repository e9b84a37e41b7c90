"""Tables of codes' laws against the mechanisms' own probabilities."""

import numpy as np
import pytest

import quietbit
from quietbit.mechanism.ball import Ball, Norm
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.cohort.law import code_law
from quietbit_lab.design.search import solve

BALL, TAXI, WIDE = Ball(Norm.L2, 40), Ball(Norm.L1, 40), Ball(Norm.L2, 40_000)


def design(epsilon, levels=2, bits=1):
    return solve(quietbit.DesignSpec(levels, bits, epsilon))


MECHANISMS = {
    "flat": quietbit.InterpolatedMVU(design(0.25), BALL),
    "steep": quietbit.InterpolatedMVU(design(5.0), BALL, beta=4.0),
    "clamped": quietbit.InterpolatedMVU(design(1.0), BALL, beta=8.0, clamp=True),
    "clamped at a tenth": quietbit.InterpolatedMVU(design(1.0), BALL, beta=10.3, clamp=True),
    "three bits": quietbit.InterpolatedMVU(design(3.0, 5, 3), BALL, 2.0),
    "five bits": quietbit.InterpolatedMVU(design(5.0, 4, 5), BALL),
    "sign": Sign(quietbit.Gaussian(BALL, 0.2)),
    "sharp sign": Sign(Laplace(TAXI, 0.01)),
    "mvu": DitheredMVU(design(2.0, 65), WIDE),
    "mvu of two bits": DitheredMVU(design(2.0, 5, 2), WIDE),
}


def table_law(law, value):
    x = min(max((value - law.low) * law.inverse, 0.0), law.cumulative.shape[0] - 1.001)
    cell = int(x)
    rows = law.cumulative[cell : cell + 2].astype(float)
    return np.diff((1 - (x - cell)) * rows[0] + (x - cell) * rows[1], prepend=0.0, append=1.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_table_is_the_mechanisms_law(name):
    """At 400 values between points of the table, probabilities are right to 4e-6."""
    mechanism = MECHANISMS[name]
    law, radius = code_law(mechanism), 1.0
    values = np.random.default_rng(0).uniform(-radius, radius, 400)
    worst = max(
        np.abs(table_law(law, value) - mechanism.distribution(value)).max()
        for value in (*values, radius, 0)
    )
    assert worst < (2e-5 if law.bits > 4 else 4e-6)
    decoded = [table_law(law, value) @ law.values for value in values]
    assert decoded == pytest.approx(
        [mechanism.expectation(value) for value in values], abs=1e-5 * np.ptp(law.values)
    )
