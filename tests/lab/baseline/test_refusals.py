"""What baselines refuse: numbers out of range, hours of work, impossible payloads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve, fields

from lab.baseline.makers import BASELINES
from quietbit import Ball, Norm
from quietbit.errors import InvalidParameter, InvalidPayload
from quietbit.mechanism import registry
from quietbit.mechanism.ball import usual_kernel
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.cpsgd import binomial_epsilon_upper
from quietbit_lab.baseline.discrete_gaussian import DistributedDiscreteGaussian
from quietbit_lab.baseline.poisson_binomial import PoissonBinomial
from quietbit_lab.baseline.ppr import PoissonRepresentation, calibrate_ppr
from quietbit_lab.baseline.privunit import step_profile
from quietbit_lab.baseline.sums import Distances
from refusals import refuses


@pytest.mark.parametrize("name", BASELINES)
def test_every_number_is_checked(name: str) -> None:
    mechanism = BASELINES[name]
    for field in fields(type(mechanism)):
        if field.name != "ball":
            for bad in (math.nan, math.inf, -1, 10**9, "2", None):
                if field.name == "rotation_seed" and bad == 10**9:
                    continue
                with pytest.raises(InvalidParameter):
                    evolve(mechanism, **{field.name: bad})
    other = Norm.L1 if mechanism.ball.norm is Norm.L2 else Norm.L2
    with refuses("norm of the ball", other.value):
        evolve(mechanism, ball=Ball(other, 67))


@pytest.mark.parametrize("name", BASELINES)
def test_a_description_that_would_keep_a_device_busy_is_refused(name: str) -> None:
    described = registry.describe(BASELINES[name])
    described["ball"] = {**described["ball"], "dimension": 2**40}
    with pytest.raises(InvalidParameter, match="cannot be used"):
        registry.build(described)


@pytest.mark.parametrize("name", ["rrsc", "mmrc", "sqkr", "cldp", "dp-rec"])
def test_a_number_that_no_client_sends_is_refused(name: str) -> None:
    mechanism = BASELINES[name]
    accumulator = mechanism.accumulator(usual_kernel(), 10)
    body = np.zeros(mechanism.layout.size, dtype=np.uint8)
    accumulator.check(body)
    body[-1] = 255
    with pytest.raises(InvalidPayload, match="number of the candidate"):
        accumulator.check(body)


def test_sums_with_too_little_noise_or_too_few_clients_have_no_account() -> None:
    ball = Ball(Norm.L2, 50)
    with refuses("deviation of one client's integers"):
        DistributedDiscreteGaussian(ball, 100, 1e-3, wire_bits=8)
    with refuses("clients", 1):
        PoissonBinomial(ball, 1, 0.1)
    with refuses("variance of the noise in the sum"):
        binomial_epsilon_upper(100, Distances(1, 1, 1), 1, 1e-5)


def test_ppr_pays_twice_alpha_for_what_it_simulates() -> None:
    ball = Ball(Norm.L2, 50)
    found = PoissonRepresentation(ball, 0.5, 1.1)
    assert found.privacy(Adjacency.REPLACE_ONE).epsilon(0.0) == pytest.approx(1.1, rel=1e-9)
    assert found.error().squared == pytest.approx(step_profile(0.5).gain_lower ** -2)
    best = calibrate_ppr(ball, Target(1.1, 0.0, Adjacency.REPLACE_ONE))
    assert 0.4999 < best.simulated_epsilon <= 0.5
    assert 1.8 / 0.05 < best.bits_upper() < 64
