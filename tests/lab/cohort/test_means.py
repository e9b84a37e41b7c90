"""Means of cohorts whose updates are outer products, against the mechanisms' laws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import quietbit
from core.statistical.kit import FALSE_ALARM
from federation.simulate.makers import mechanisms
from quietbit.mechanism.ball import Ball, Norm
from quietbit.target import Trust
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam
from quietbit_lab.cohort.law import CodeLaw
from quietbit_lab.cohort.means import again_upper, together, way_of
from quietbit_lab.design.search import solve
from refusals import refuses

BALL, CPU = Ball(Norm.L2, 40), torch.device("cpu")
WIDE = Ball(Norm.L2, 40_000)  # in so many dimensions MVU never draws again
Z = 7.0  # of some hundreds of normal statistics: below 1e-9


def design(epsilon, levels=2, bits=1):
    return solve(quietbit.DesignSpec(levels, bits, epsilon))


LAWS = {
    "one bit": quietbit.InterpolatedMVU(design(3.0), BALL),
    "three bits": quietbit.InterpolatedMVU(design(3.0, 5, 3), BALL, 2.0),
    "sign": Sign(quietbit.Gaussian(BALL, 0.3)),
}


def factors(groups, clients, classes=3, features=9, seed=0):
    rng = np.random.default_rng(seed)
    left = rng.uniform(-0.5, 0.5, (1, classes, clients)).astype(np.float32).repeat(groups, 0)
    return torch.from_numpy(left), torch.from_numpy(
        rng.uniform(-1, 1, (clients, features)).astype(np.float32)
    )


def off(found, mechanism, left, right):
    """How many deviations the means over models are off, and squares over their expectation."""
    u = np.einsum("km,mf->kfm", left[0].numpy().astype(float), right.numpy().astype(float))
    mean, variance = (np.vectorize(one)(u) for one in (mechanism.expectation, mechanism.variance))
    deviation = np.sqrt(variance.sum(axis=2)) / u.shape[2]
    z = (found - mean.mean(axis=2)) / deviation
    return np.abs(z.sum(axis=0)).max() / math.sqrt(len(z)), (z**2).sum() / z.size, z.size


def drawn(name, groups, left, right, seed):
    ways = [way_of(LAWS[name], right.shape[0])] * groups
    return together(ways, right.shape[0], CPU)(left, right, seed)


@pytest.mark.parametrize("name", LAWS)
def test_means_have_the_mechanisms_mean_and_variance(name):
    mechanism, (left, right) = LAWS[name], factors(200, 60)
    found = drawn(name, 200, left, right, 5).numpy().astype(float)
    means, squares, count = off(found, mechanism, left, right)
    assert means < Z
    assert abs(squares - 1) < Z * math.sqrt(2 / count)
    means, squares, count = off(found + found.std(axis=0).mean(), mechanism, left, right)
    assert means > Z  # the test can fail


def test_a_nan_is_drawn_as_some_value_and_harms_nobody_else():
    left, right = factors(2, 50)
    left[1, 0, 7] = float("nan")
    left[1, 1, 7] = float("inf")
    assert bool(torch.isfinite(drawn("one bit", 2, left, right, 1)).all())


def test_what_is_drawn_and_what_is_refused():
    drawn = {name: one for name, one in mechanisms(40).items() if name not in ("skellam", "mvu")}
    found = {name: way_of(mechanism, 600).kind for name, mechanism in drawn.items()}
    assert (found["imvu-1"], found["imvu-3"], found["imvu-l1"]) == ("codes 1", "codes 3", "codes 1")
    assert (found["gaussian"], found["laplace"]) == ("normal", "laplace")
    assert way_of(quietbit.Gaussian(BALL, 1.0), 10, Trust.CENTRAL).deviation == pytest.approx(0.1)
    assert way_of(Laplace(Ball(Norm.L1, 40), 1.0), 600, draw="sums").kind == "normal"
    with refuses("variance of a cohort's Skellam noise"):
        way_of(Skellam(BALL, 2.0, 6), 10)
    for levels in (8, 9):
        with refuses("levels", levels):
            way_of(DitheredMVU(design(2.0, levels=levels), BALL), 10)


def test_mvu_is_drawn_by_coordinates_where_its_dither_is_never_drawn_again():
    """The bound holds against drawn dithers, for the updates that are longest when dithered."""
    assert way_of(DitheredMVU(design(2.0, levels=65), WIDE), 600).kind == "codes 1"
    assert again_upper(DitheredMVU(design(2.0, levels=65), Ball(Norm.L2, 39_700))) < 1e-160
    assert again_upper(DitheredMVU(design(2.0, levels=65), Ball(Norm.L1, 40_000))) == 1.0
    rng, some = np.random.default_rng(5), 0
    for dimension, levels in ((400, 9), (400, 17), (900, 17), (1600, 9)):
        mechanism = DitheredMVU(design(2.0, levels), Ball(Norm.L2, dimension))
        half, upper = (levels - 1) / 2, again_upper(mechanism)
        some += upper < 0.5
        for active in (1, dimension // 4, dimension):  # spread over some coordinates or all
            value = half / math.sqrt(active)
            part = value - math.floor(value)
            points = math.floor(value) + (rng.random((1000, active)) < part)
            again = (np.square(points).sum(axis=1) > (mechanism.reach * (levels - 1)) ** 2).mean()
            assert again <= upper + 6 * math.sqrt(upper / 1000)  # six deviations: 1e-9
    assert some >= 2  # of the bounds say something


def test_models_of_one_kind_have_their_own_laws():
    """Two clips and two designs side by side: means scale with the clip and follow the design."""
    clips = (0.5, 8.0)
    made = [quietbit.InterpolatedMVU(design(e, 8, 2), Ball(Norm.L2, 24), 2.0) for e in (3.0, 1.0)]
    ways = [way_of(one, 4000, clip=clip) for one, clip in zip(made, clips, strict=True)]
    assert isinstance(ways[0].law, CodeLaw)
    assert ways[0].kind == ways[1].kind == "codes 2"
    errors = torch.tensor([[[0.25]], [[4.0]]], dtype=torch.float64).expand(2, 1, 4000)
    found = together(ways, 4000, CPU)(errors, torch.ones((4000, 8)) * 0.5, 9).numpy()
    for mechanism, row, clip in zip(made, found[:, 0], clips, strict=True):
        deviation = math.sqrt(mechanism.variance(0.25) / 4000)
        assert np.abs(row / clip - mechanism.expectation(0.25)).max() < Z * deviation


@pytest.mark.parametrize("clients", [1, 5, 600])
def test_a_difference_of_gammas_is_a_sum_of_laplace_variables(clients):
    scale = 0.25 * 0.5
    mechanism = Laplace(Ball(Norm.L1, 39), 0.25)
    mean = together([way_of(mechanism, clients, clip=0.5)] * 400, clients, CPU)
    found = mean(torch.zeros((400, 3, clients), dtype=torch.float64), torch.zeros((clients, 16)), 9)
    noise = found.numpy().astype(np.float64).reshape(-1) * clients / scale
    sums = np.random.default_rng(0).laplace(size=(2000, clients)).sum(axis=1)
    assert stats.ks_2samp(noise, sums).pvalue > FALSE_ALARM
