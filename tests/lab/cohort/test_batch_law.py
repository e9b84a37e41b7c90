"""The mean that a batch draws has the law of the clients' sum.

False-alarm rates: at most 1e-9 each. Binomial counts are exact; the spread of Laplace sums uses
their fourth moment and ten deviations, which is beyond 1e-9 for averages of this many variables.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import quietbit
from core.statistical.kit import FALSE_ALARM, StatisticalFailure, assert_binomial, seed
from quietbit.mechanism.ball import Ball, Norm
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam
from quietbit_lab.cohort.law import code_law
from quietbit_lab.cohort.means import together, way_of
from quietbit_lab.design.search import solve

DRAWS, COHORT, CLIP = 48, 40, 0.5
CPU = torch.device("cpu")


def design(epsilon, levels=2, bits=1):
    return solve(quietbit.DesignSpec(levels, bits, epsilon))


def make(name, ball):
    return {
        "imvu": lambda: quietbit.InterpolatedMVU(design(2.0), ball),
        "imvu-3": lambda: quietbit.InterpolatedMVU(design(3.0, 5, 3), ball, 2.0),
        "sign": lambda: Sign(quietbit.Gaussian(ball, 0.2)),
        "gaussian": lambda: quietbit.Gaussian(ball, 0.5),
        "skellam": lambda: Skellam(ball, 0.5, 16),
    }[name]()


@pytest.mark.parametrize("name", ["imvu", "sign"])
def test_bits_of_equal_clients_are_binomial(name):
    mechanism = make(name, Ball(Norm.L2, 21))
    (low, high), clients = code_law(mechanism).values, 200
    error, feature = np.array([0.3, -0.2, 0.05]), np.linspace(-1, 1, 7).astype(np.float32)
    errors = torch.from_numpy(error)[None, :, None].expand(DRAWS, 3, clients).contiguous()
    mean = together([way_of(mechanism, clients)] * DRAWS, clients, CPU)
    found = mean(errors, torch.from_numpy(feature).expand(clients, 7).contiguous(), seed(7))
    ones = np.rint((found.numpy() - low) / (high - low) * clients).sum(axis=0)
    values = error[:, None] * feature
    one = (np.vectorize(mechanism.expectation)(values) - low) / (high - low)
    assert_binomial(ones, DRAWS * clients, one)
    with pytest.raises(StatisticalFailure):
        assert_binomial(ones, DRAWS * clients, np.clip(one + 0.03, 0, 1))


@pytest.mark.parametrize("clients", [1, 5, 600])
def test_a_difference_of_gammas_is_a_sum_of_laplace_variables(clients):
    scale = 0.25 * CLIP
    mechanism = Laplace(Ball(Norm.L1, 39), 0.25)
    mean = together([way_of(mechanism, clients, clip=CLIP)] * 400, clients, CPU)
    found = mean(
        torch.zeros((400, 3, clients), dtype=torch.float64), torch.zeros((clients, 16)), seed(9)
    )
    noise = found.numpy().astype(np.float64).reshape(-1) * clients / scale
    count = noise.size  # variance 2 m, fourth central moment 12 m^2 + 12 m
    assert abs(noise.mean()) < 10 * math.sqrt(2 * clients / count)
    assert abs((noise**2).mean() - 2 * clients) < 10 * math.sqrt(
        (8 * clients**2 + 12 * clients) / count
    )
    sums = np.random.default_rng(0).laplace(size=(2000, clients)).sum(axis=1)
    assert stats.ks_2samp(noise, sums).pvalue > FALSE_ALARM
