"""Published errors of the field against the exact formulas here: value, tolerance and source
live in baselines.toml.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quietbit import Adjacency, Ball, Norm
from quietbit.mechanism.family import Choices
from quietbit.mechanism.solve_profile import solve_profile
from quietbit.target import Target
from quietbit_lab.baseline import mmrc, rrsc, sqkr
from quietbit_lab.baseline.privunit import FAMILY as PRIVUNIT
from quietbit_lab.baseline.privunit import FAMILY_G as PRIVUNIT_G
from quietbit_lab.baseline.privunit import step_profile
from quietbit_lab.baseline.staircase import best_gamma, mean_square

GOLDEN = tomllib.loads((Path(__file__).parent / "baselines.toml").read_text(encoding="utf-8"))
BALL = Ball(Norm.L2, GOLDEN["dimension"])
CASES = list(enumerate(GOLDEN["epsilons"]))
NEAR = GOLDEN["tolerance"]


def of_mean(mechanism: Any) -> float:
    """The squared error of a mean over all coordinates, for clients that all hold the first unit
    vector.
    """
    return (mechanism.variance(1.0) + (BALL.dimension - 1) * mechanism.variance(0.0)) / GOLDEN[
        "clients"
    ]


@pytest.mark.parametrize(("place", "epsilon"), CASES)
def test_rrsc_and_sqkr_have_the_published_errors(place: int, epsilon: int) -> None:
    for name, family in (("rrsc", rrsc.FAMILY), ("sqkr", sqkr.FAMILY)):
        found = of_mean(family.given(BALL, float(epsilon), Choices(bits=epsilon)))
        assert found == pytest.approx(GOLDEN[name][place], rel=NEAR), name


@pytest.mark.parametrize(("place", "epsilon"), CASES)
def test_the_published_error_of_mmrc_lies_between_two_caps(place: int, epsilon: int) -> None:
    best = mmrc.FAMILY.given(BALL, float(epsilon), Choices(bits=epsilon))
    usual = PRIVUNIT.given(BALL, float(epsilon), Choices()).cap  # type: ignore[attr-defined]
    other = mmrc.MinimalRandomCoding(BALL, epsilon, float(epsilon), usual)
    assert of_mean(best) <= GOLDEN["mmrc"][place] <= of_mean(other) * (1 + NEAR)


@pytest.mark.parametrize(("place", "epsilon"), CASES)
def test_privunit_and_privunit_g_have_the_published_error(place: int, epsilon: int) -> None:
    on_sphere = of_mean(PRIVUNIT.given(BALL, float(epsilon), Choices()))
    normal = step_profile(float(epsilon)).gain_lower ** -2 * BALL.dimension / GOLDEN["clients"]
    for found in (on_sphere, normal):
        assert found == pytest.approx(GOLDEN["privunit_g"][place], rel=NEAR)
    assert on_sphere == pytest.approx(normal, rel=0.01)


@pytest.mark.parametrize(("place", "epsilon"), list(enumerate(GOLDEN["pure"]["epsilons"])))
def test_privunit_g_is_the_vector_mechanism_for_one_pure_release(place: int, epsilon: int) -> None:
    """The step found here, and the profile that the library designs for delta = 0 without
    knowing of steps.
    """
    step = step_profile(float(epsilon)).gain_lower ** -2
    designed = solve_profile(float(epsilon), 0.0, 1, Adjacency.REPLACE_ONE)
    assert step == pytest.approx(
        GOLDEN["pure"]["privunit_g"][place], rel=GOLDEN["pure"]["tolerance"]
    )
    assert designed.gain_lower**-2 == pytest.approx(step, rel=1e-4)
    assert designed.levels.size == 2


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 8.0])
def test_the_staircase_has_geng_and_viswanath_variance(epsilon: float) -> None:
    """In one dimension, and Laplace's in many: there a staircase gains nothing."""
    b = math.exp(-epsilon)
    exact = (2 ** (-2 / 3) * b ** (2 / 3) * (1 + b) ** (2 / 3) + b) / (1 - b) ** 2
    assert mean_square(epsilon, best_gamma(epsilon, 1), 1) == pytest.approx(exact, rel=1e-9)
    many = mean_square(epsilon, best_gamma(epsilon, 200), 200)
    assert many == pytest.approx(200 * 201 / epsilon**2, rel=1e-6)


def test_a_baseline_is_calibrated_at_its_best() -> None:
    """For zero-out neighbours the cap of the papers is far from the best; tuned, a step is the
    designed profile.
    """
    target = Target(1.0, 1e-5, Adjacency.ZERO_OUT)

    def account(mechanism: Any) -> float:
        return float(mechanism.privacy(target.adjacency).epsilon(target.delta))

    found = PRIVUNIT_G.calibrated(BALL, Choices(), target, account)
    assert account(found) <= target.epsilon
    designed = solve_profile(1.0, 1e-5, 1, Adjacency.ZERO_OUT).gain_lower ** -2
    assert found.error().squared == pytest.approx(designed, rel=0.01)
