from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from core.mechanism.makers import design, table
from pairs import pairs
from quietbit import Ball, Gaussian, InterpolatedMVU, Norm, calibrate
from quietbit.design.certify import certify
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam
from refusals import refuses

KINDS = {
    "imvu": InterpolatedMVU,
    "mvu": DitheredMVU,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "sign": Sign,
    "skellam": Skellam,
}
L2 = Ball(Norm.L2, 500)
L1 = Ball(Norm.L1, 500)
BALLS = {
    "imvu": (L1, L2),
    "mvu": (L1, L2),
    "gaussian": (L2,),
    "laplace": (L1,),
    "sign": (L1, L2),
    "skellam": (L2,),
}
CASES = [(name, ball) for name, balls in BALLS.items() for ball in balls]
IDS = [f"{name} {ball.norm.value}" for name, ball in CASES]


AXES = (CASES, (1, 50, 100_000), (0.01, 1.0, 50.0), tuple(Adjacency))
MET = [
    *pairs(CASES, (1, 50), *AXES[2:]),
    (("imvu", L2), 100_000, 1.0, Adjacency.REPLACE_ONE),
    (("skellam", L2), 100_000, 0.01, Adjacency.ZERO_OUT),
]


@pytest.mark.parametrize(
    ("case", "releases", "epsilon", "adjacency"),
    [one if one in MET else pytest.param(*one, marks=pytest.mark.long) for one in product(*AXES)],
)
def test_the_account_is_met_from_the_private_side(
    case: tuple[Any, Ball], releases: int, epsilon: float, adjacency: Adjacency
) -> None:
    name, ball = case
    try:
        found = calibrate(
            name, ball=ball, epsilon=epsilon, delta=1e-5, releases=releases, adjacency=adjacency
        )
    except InvalidParameter as refusal:
        # Integers of 16 bits are never closer than 1, and no table is flatter than 1e-6 from level
        # to level: many releases at a small epsilon are out of their reach.
        assert name == "skellam" or (name, epsilon, releases) == ("mvu", 0.01, 100_000)
        assert releases > 1 or adjacency is Adjacency.REPLACE_ONE
        assert epsilon < 10
        assert "epsilon must be at least" in str(refusal)  # noqa: PT017
        return
    reached = found.guarantee.epsilon_upper
    assert isinstance(found.mechanism, KINDS[name])
    assert reached <= epsilon
    assert reached == (found.mechanism.privacy(adjacency) * releases).epsilon(1e-5)
    assert found.saturated == (reached < epsilon * (1 - 1e-4))
    if (
        found.saturated
    ):  # no sampler of 2^-48 accuracy can be certified for one release this revealing
        assert (name in ("imvu", "mvu"), releases, epsilon) == (True, 1, 50.0)
        assert adjacency is Adjacency.ZERO_OUT or name == "mvu" or ball.norm is Norm.L1
    assert found.squared_error > 0
    assert found.releases == releases
    assert (found.guarantee.delta, found.guarantee.adjacency) == (1e-5, adjacency)


def test_the_guarantee_carries_its_words() -> None:
    found = calibrate("gaussian", ball=L2, epsilon=2.0, delta=1e-6, adjacency="zero-out")
    assert (found.guarantee.unit, found.guarantee.trust) == (Unit.CLIENT, Trust.LOCAL)
    assert found.guarantee.adjacency is Adjacency.ZERO_OUT
    sample = calibrate(
        "gaussian", ball=L2, epsilon=2.0, delta=1e-6, adjacency="zero-out", samples=2
    )
    assert sample.guarantee.unit is Unit.SAMPLE
    assert sample.squared_error == pytest.approx(found.squared_error / 4, rel=1e-4)
    assert found.squared_error == pytest.approx(found.gaussian_squared_error)


def test_one_bit_has_the_gaussians_error_in_many_dimensions() -> None:
    """Clamped to a tenth of the radius, bits are dominated by a Gaussian pair of 1.9 % more
    variance.
    """
    wide = Ball(Norm.L2, 10_000)
    for epsilon in (1.0, 8.0):
        for releases in (1, 50, 1000):
            for adjacency in Adjacency:
                given: Any = {
                    "ball": wide,
                    "delta": 1e-5,
                    "releases": releases,
                    "adjacency": adjacency,
                }
                found = calibrate("imvu", epsilon=epsilon, **given)
                assert (
                    found.gaussian_squared_error
                    < found.squared_error
                    < 1.03 * found.gaussian_squared_error
                )
                assert found.guarantee.epsilon_upper <= epsilon
    sign = calibrate(
        "sign", ball=L2, epsilon=3.0, delta=1e-5, releases=50, adjacency=Adjacency.ZERO_OUT
    )
    assert sign.squared_error == pytest.approx(math.pi / 2 * sign.gaussian_squared_error, rel=1e-6)


@pytest.mark.parametrize(
    ("ball", "clamp", "chosen"),
    [
        (L1, False, design(2, 1, 1.0)),
        pytest.param(L2, False, table(4, 2, 1.5), marks=pytest.mark.long),
        (L2, True, design(2, 1, 1.0)),
        pytest.param(L1, True, table(4, 2, 1.5), marks=pytest.mark.long),
    ],
)
def test_beta_is_calibrated_for_a_given_design(ball: Ball, clamp: bool, chosen: Design) -> None:
    given: Any = {"ball": ball, "delta": 1e-5, "adjacency": Adjacency.REPLACE_ONE, "design": chosen}
    found = calibrate("imvu", epsilon=1.0, releases=3, clamp=clamp, **given)
    assert isinstance(found.mechanism, InterpolatedMVU)
    assert found.mechanism.design is chosen
    assert found.mechanism.clamp is clamp
    assert 1.0 - 1e-4 <= found.guarantee.epsilon_upper <= 1.0


def test_choices_are_passed_on() -> None:
    common: Any = {"ball": L2, "epsilon": 2.0, "delta": 1e-5, "adjacency": Adjacency.ZERO_OUT}
    wide = calibrate("imvu", bits=3, beta=4.0, decoder="unbiased-at-zero", **common).mechanism
    assert isinstance(wide, InterpolatedMVU)
    assert (wide.bits, wide.beta, wide.decoder, wide.design.spec.input_levels) == (
        3,
        4.0,
        "unbiased-at-zero",
        2,
    )
    levels = calibrate("imvu", levels=3, **common).mechanism
    assert isinstance(levels, InterpolatedMVU)
    assert levels.design.spec.input_levels == 3
    assert calibrate("skellam", bits=12, **common).mechanism.bits == 12
    dithered = calibrate("mvu", levels=5, **common).mechanism
    assert isinstance(dithered, DitheredMVU)
    assert dithered.design.spec.input_levels == 5


def test_pure_targets() -> None:
    common: Any = {"epsilon": 2.0, "delta": 0.0, "releases": 7, "adjacency": Adjacency.REPLACE_ONE}
    for name in ("imvu", "laplace", "mvu", "sign"):
        found = calibrate(name, ball=L1, **common)  # type: ignore[arg-type]
        assert 2.0 * (1 - 1e-4) <= found.guarantee.epsilon_upper <= 2.0
        assert math.isinf(found.gaussian_squared_error)
    with refuses("delta"):
        calibrate("gaussian", ball=L2, **common)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"mechanism": "quantum"}, "mechanism"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"releases": 0}, "releases"),
        ({"adjacency": "nearby"}, "adjacency"),
        ({"ball": 1.0}, "ball"),
        ({"bits": 2, "levels": 4}, "levels"),
        ({"mechanism": "mvu", "design": "x"}, "design"),
        ({"mechanism": "gaussian", "ball": L1}, "norm of the ball"),
        ({"epsilon": 1e-9, "releases": 10**6}, "epsilon"),
        ({"rows": "shared"}, "rows"),
        ({"rows": "mine", "coordinates": 8}, "rows"),
        ({"local_steps": 3}, "local_steps"),
        ({"sampling_rate": 0.1}, "samples"),
    ],
)
def test_a_refusal_names_the_field(changed: dict[str, Any], name: str) -> None:
    usual: dict[str, Any] = {
        "mechanism": "imvu",
        "ball": L2,
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": Adjacency.ZERO_OUT,
    }
    with refuses(name):
        calibrate(**(usual | changed))


def test_the_search_survives_a_stepped_account() -> None:
    """An account with a jump: the private end is returned, however far from the target it is."""

    def stepped(found: Any) -> Guarantee:
        epsilon = 0.5 if found.noise_multiplier > 2.0 else 3.0
        return Guarantee(epsilon, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)

    given: Any = {"ball": L2, "epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.ZERO_OUT}
    found = calibrate("gaussian", account=stepped, **given)
    assert isinstance(found.mechanism, Gaussian)
    assert 2.0 < found.mechanism.noise_multiplier < 2.0 * (1 + 4e-6)  # a step of the search
    assert found.guarantee.epsilon_upper == 0.5
    assert found.saturated


@pytest.mark.parametrize("epsilon", [26.117, 27.705, 29.39])
def test_steep_designs_say_how_steep_doubles_made_them(epsilon: float) -> None:
    """Near e^-27 a row that sums to one exactly cannot hold the requested ratio; the account is
    the table's own.
    """
    found = calibrate(
        "imvu",
        ball=Ball(Norm.L1, 1),
        epsilon=epsilon,
        delta=1e-5,
        adjacency=Adjacency.ZERO_OUT,
    )
    assert isinstance(found.mechanism, InterpolatedMVU)
    assert certify(found.mechanism.design).meets_spec
    assert epsilon * (1 - 1e-4) <= found.guarantee.epsilon_upper <= epsilon


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"samples": 100, "sampling_rate": 0.1}, "sampling_rate"),
        ({"local_steps": 3}, "local_steps"),
        ({"rows": "shared"}, "rows"),
    ],
)
def test_auto_refuses_what_it_makes_no_use_of(given: dict[str, Any], name: str) -> None:
    """They were ignored: what was returned drew no batches, took no steps and shared no rows."""
    with refuses(name, given[name]):
        calibrate("auto", ball=L2, epsilon=1.0, delta=1e-5, adjacency="zero-out", **given)
