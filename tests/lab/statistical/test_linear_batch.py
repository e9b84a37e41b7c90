"""The mean that a batch draws has the law of the per-client path, on scikit-learn's digits.

False-alarm rates: at most 1e-9 each. Binomial counts are exact; sums of bounded variables use
Bernstein's inequality; normal noise uses exact chi-square tails; the spread of Laplace sums uses
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
from plans import flat_plan
from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.mechanism.ball import Ball, Norm
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam
from quietbit_lab.cohort.law import code_law
from quietbit_lab.cohort.means import together, way_of
from quietbit_lab.task.linear_device import DeviceProblem, open_device
from quietbit_lab.task.registry import TaskSpec, build_task

DRAWS, COHORT, CLIP = 48, 40, 0.5
CPU = torch.device("cpu")


def design(epsilon, levels=2, bits=1):
    return quietbit.solve(quietbit.DesignSpec(levels, bits, epsilon))


def make(name, ball):
    return {
        "imvu": lambda: quietbit.InterpolatedMVU(design(2.0), ball),
        "imvu-3": lambda: quietbit.InterpolatedMVU(design(3.0, 5, 3), ball, 2.0),
        "sign": lambda: Sign(quietbit.Gaussian(ball, 0.2)),
        "gaussian": lambda: quietbit.Gaussian(ball, 0.5),
        "skellam": lambda: Skellam(ball, 0.5, 16),
    }[name]()


def assert_sums(sums, expected, variance, largest):
    """Sums of independent variables, each at most ``largest`` from its mean, have these means
    (Bernstein).
    """
    off, size = np.abs(sums - expected), np.size(sums)
    log = math.log(2 * size / FALSE_ALARM)
    reach = largest * log / 3 + np.sqrt((largest * log / 3) ** 2 + 2 * log * variance)
    if np.any(off > reach):
        raise StatisticalFailure(
            f"A sum is {np.max(off / reach):.3g} times as far off as chance allows."
        )


@pytest.fixture(scope="module")
def digits():
    problem = build_task(TaskSpec("digits"))
    parameters = (np.random.default_rng(5).standard_normal(650) * 0.05).astype(np.float32)
    return problem, DeviceProblem(problem, open_device("cpu")), parameters


def batch_draws(data, mechanism, parameters, clients, first):
    """DRAWS means of one cohort, as a batch of equal runs draws them: (DRAWS, 650)."""
    cohort, norm = torch.from_numpy(clients), mechanism.ball.norm
    features = data.cohort(cohort)
    clip = torch.full((1,), CLIP, dtype=torch.float64)
    errors = data.clipped_errors(data.models(parameters, 1), features, cohort, norm, clip)
    mean = together([way_of(mechanism, COHORT)] * DRAWS, COHORT, CPU)
    found = mean(errors.expand(DRAWS, -1, -1).contiguous(), features, first)
    return np.array(data.parameters(found), dtype=np.float64)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 6) for name in ("imvu", "imvu-3", "sign", "gaussian", "skellam")),
        pytest.param("imvu", DRAWS, marks=pytest.mark.long),
    ],
)
def test_mean_and_variance_are_those_of_the_per_client_path(digits, name, rounds):
    problem, data, parameters = digits
    clients = np.arange(COHORT, dtype=np.int64) * 7
    mechanism = make(name, Ball(Norm.L2, CLIP, 650))
    rows = np.zeros((COHORT, 656), dtype=np.float32)
    problem.updates(parameters, clients, LocalPlan(Norm.L2, CLIP), rows[:, :650])
    distinct, where = np.unique(rows[:, :650], return_inverse=True)
    means = (
        np.array([mechanism.expectation(float(u)) for u in distinct])[where]
        .reshape(COHORT, 650)
        .mean(axis=0)
    )
    spread = (
        np.array([mechanism.variance(float(u)) for u in distinct])[where]
        .reshape(COHORT, 650)
        .sum(axis=0)
    )
    spread /= COHORT**2
    mine = batch_draws(data, mechanism, parameters, clients, seed(41))
    values = getattr(mechanism, "values", np.array([-1.0, 1.0]))
    largest = np.ptp(values) / COHORT
    if name in ("gaussian", "skellam"):
        largest = 0.0  # sums of normals: Bernstein without its linear part
    assert_sums(mine.sum(axis=0), DRAWS * means, DRAWS * spread, largest)
    plan = flat_plan(
        "imvu",
        clip=CLIP,
        adjacency="zero-out",
        design_epsilon=1.0,
        cohort=COHORT,
        rng="seeded",
        seed=seed(42),
    )
    side = ClientSide(problem, LocalPlan(Norm.L2, CLIP), plan, mechanism)
    released = []
    for number in range(1, rounds + 1):
        released.append(play_round(number, clients, mechanism, side, parameters).mean())
    theirs = np.array(released)
    assert_sums(theirs.sum(axis=0), len(theirs) * means, len(theirs) * spread, largest)
    # All coordinates together: squares in units of the variance. Their mean is 1, fourth moments
    # are below 3.2.
    for draws in (mine, theirs):
        squares = ((draws - means) ** 2 / spread).sum()
        low, high = stats.chi2.isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2], draws.size)
        assert low < squares < high


def test_the_comparison_can_fail(digits):
    _, data, parameters = digits
    clients = np.arange(COHORT, dtype=np.int64) * 7
    mechanism = make("imvu", Ball(Norm.L2, CLIP, 650))
    mine = batch_draws(data, mechanism, parameters, clients, 1)
    spread = mechanism.variance(0.0) / COHORT
    with pytest.raises(StatisticalFailure):
        assert_sums(
            mine.sum(axis=0),
            DRAWS * (mine.mean(axis=0) + 5 * math.sqrt(spread)),
            DRAWS * spread,
            0.1,
        )
    low, high = stats.chi2.isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2], mine.size)
    assert not low < (mine**2).sum() / (1.1 * spread) < high


@pytest.mark.parametrize("name", ["imvu", "sign"])
def test_bits_of_equal_clients_are_binomial(name):
    mechanism = make(name, Ball(Norm.L2, CLIP, 21))
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
    mechanism = Laplace(Ball(Norm.L1, CLIP, 39), 0.25)
    mean = together([way_of(mechanism, clients)] * 400, clients, CPU)
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
