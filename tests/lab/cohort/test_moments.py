"""The normal law of cohorts' sums against enumeration, and against what every client draws."""

import math

import numpy as np
import pytest
import torch

import quietbit
from core.statistical.kit import FALSE_ALARM
from quietbit.mechanism.ball import Ball, Norm
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.cohort.means import together, way_of
from quietbit_lab.cohort.moments import fit_moments
from quietbit_lab.design.search import solve

BALL, TAXI = Ball(Norm.L2, 40_000), Ball(Norm.L1, 40_000)


def interpolated(epsilon, bits=1, ball=BALL, **given):
    return quietbit.InterpolatedMVU(
        solve(quietbit.DesignSpec(2**bits, bits, epsilon)), ball, **given
    )


CASES = {
    "one bit": (interpolated(5.0, decoder="alphabet"), 0.2),
    "three bits": (interpolated(10.0, 3, TAXI, beta=8.0, clamp=True), 0.004),
    "sign": (Sign(quietbit.Gaussian(BALL, 0.5)), 0.2),
    "sign of Laplace": (Sign(Laplace(TAXI, 0.03)), 0.004),
    "MVU": (DitheredMVU(solve(quietbit.DesignSpec(65, 1, 3.0)), BALL), 0.2),
}


class Lopsided:
    """Whose mean is 0.2 more than the update."""

    values, ball = np.array([-10.0, 10.0]), BALL

    def distribution(self, value):
        one = 0.5 + (value + 0.2) / 20
        return np.array([1 - one, one])


def test_a_normal_stands_for_no_bent_or_lopsided_law_and_no_small_cohort():
    assert fit_moments(interpolated(5.0), 0.2, 500) is not None
    assert fit_moments(interpolated(5.0), 1.0, 500) is None  # bent
    assert fit_moments(interpolated(5.0), 0.2, 20) is None  # too few clients
    assert fit_moments(Lopsided(), 0.1, 500) is None


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_mean_and_variance_of_the_clients_codes(name):
    """4,800 coordinates, false alarms below 1e-9; half a deviation more is caught."""
    mechanism, share = CASES[name]
    clients, rng = 400, np.random.default_rng(2)
    way = way_of(mechanism, clients, share=share, draw="sums")
    assert way.kind.startswith("moments ")
    assert way.draws == "normal in place of the sum"
    features = rng.uniform(-1, 1, (clients, 8)).astype(np.float32)
    errors = rng.uniform(-1, 1, (1, 3, clients)) * share
    groups = 200
    mean = together([way] * groups, clients, torch.device("cpu"))
    drawn = mean(
        torch.tensor(errors).expand(groups, 3, clients), torch.from_numpy(features), len(name)
    ).numpy()
    u = np.einsum("km,mf->kfm", errors[0], features.astype(np.float64))
    expected, variance = (
        np.array([[f(value) for value in row] for row in u.reshape(24, -1)])
        for f in (mechanism.expectation, mechanism.variance)
    )
    wanted, deviation = expected.mean(axis=1), np.sqrt(variance.sum(axis=1)) / clients

    def alarm(values):
        """24 means, and a chi-square by Laurent and Massart's bound: 2 e^-x each."""
        z, x = (values.reshape(groups, 24) - wanted) / deviation, -math.log(FALSE_ALARM / 50)
        means = np.abs(z.sum(axis=0)).max() / math.sqrt(groups)
        return (
            means > math.sqrt(2 * x)
            or abs((z**2).sum() - z.size) > 2 * math.sqrt(z.size * x) + 2 * x
        )

    assert not alarm(drawn)
    assert alarm(drawn + 0.5 * deviation.reshape(3, 8))
    assert alarm(1.2 * (drawn - wanted.reshape(3, 8)) + wanted.reshape(3, 8))
