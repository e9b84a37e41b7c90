"""Calibration: the target is met from the private side, by every family, for clients, samples and
sums; and what is asked for without a use is refused.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from core.laws.test_prices import CODES
from core.mechanism.makers import MECHANISMS, design, table, update
from pairs import pairs
from path import encode
from quietbit import Ball, Norm, Uplink, calibrate, seeded_rng
from quietbit.design.certify import certify
from quietbit.design.table import Design
from quietbit.errors import InvalidParameter
from quietbit.mechanism.registry import family_of
from quietbit.mechanism.rotation import fewest_kept
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit
from refusals import refuses

L2, L1, WIDE = Ball(Norm.L2, 500), Ball(Norm.L1, 500), Ball(Norm.L2, 10_000)
CASES = [(name, L2) for name in ("imvu", "mvu", "gaussian", "sign", "skellam")]
CASES += [(name, L1) for name in ("imvu", "mvu", "laplace", "sign")]
AXES = (CASES, (1, 50, 100_000), (0.01, 1.0, 50.0), tuple(Adjacency))
MET = [
    *pairs(CASES, (1, 50), *AXES[2:]),
    (("imvu", L2), 100_000, 1.0, Adjacency.REPLACE_ONE),
    (("skellam", L2), 100_000, 0.01, Adjacency.ZERO_OUT),
]
USUAL: dict[str, Any] = {
    "mechanism": "imvu",
    "ball": L2,
    "epsilon": 1.0,
    "delta": 1e-5,
    "adjacency": "zero-out",
}


def calibrated(**changed: Any) -> Any:
    return calibrate(**(USUAL | changed))


@pytest.mark.parametrize(
    ("case", "releases", "epsilon", "adjacency"),
    [one if one in MET else pytest.param(*one, marks=pytest.mark.long) for one in product(*AXES)],
)
def test_the_account_is_met_from_the_private_side(
    case: tuple[str, Ball], releases: int, epsilon: float, adjacency: Adjacency
) -> None:
    name, ball = case
    asked = {"epsilon": epsilon, "releases": releases, "adjacency": adjacency}
    try:
        found = calibrated(mechanism=name, ball=ball, **asked)
    except InvalidParameter as refusal:
        # Integers of 16 bits are never closer than 1, and no table is flatter than 1e-6 from level
        # to level: many releases at a small epsilon are out of their reach.
        assert name == "skellam" or (name, epsilon, releases) == ("mvu", 0.01, 100_000)
        assert epsilon < 10
        assert refusal.name == "epsilon"  # noqa: PT017
        return
    reached = found.guarantee.epsilon_upper
    assert family_of(found.mechanism) == name
    assert reached <= epsilon
    assert reached == (found.mechanism.privacy(adjacency) * releases).epsilon(1e-5)
    assert found.saturated == (reached < epsilon * (1 - 1e-4))
    # No sampler of 2^-48 accuracy can be certified for one release that reveals more.
    assert not found.saturated or (name in ("imvu", "mvu") and (releases, epsilon) == (1, 50.0))
    assert found.squared_error > 0
    assert found.releases == releases
    assert (found.guarantee.delta, found.guarantee.adjacency) == (1e-5, adjacency)


def test_the_guarantee_carries_its_words() -> None:
    found = calibrated(mechanism="gaussian", epsilon=2.0)
    sample = calibrated(mechanism="gaussian", epsilon=2.0, samples=2)
    assert (found.guarantee.unit, found.guarantee.trust) == (Unit.CLIENT, Trust.LOCAL)
    assert sample.guarantee.unit is Unit.SAMPLE
    assert sample.squared_error == pytest.approx(found.squared_error / 4, rel=1e-4)
    assert found.squared_error == pytest.approx(found.gaussian_squared_error)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("releases", [1, 1000])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_one_bit_has_the_gaussians_error_in_many_dimensions(
    epsilon: float, releases: int, adjacency: Adjacency
) -> None:
    """Clamped to a tenth of the radius, bits are dominated by a Gaussian pair of 1.9 % more
    variance.
    """
    found = calibrated(ball=WIDE, epsilon=epsilon, releases=releases, adjacency=adjacency)
    assert 1 < found.relative_error < 1.03
    assert found.guarantee.epsilon_upper <= epsilon


def test_signs_of_noise_have_half_pi_times_its_error() -> None:
    found = calibrated(mechanism="sign", epsilon=3.0, releases=50)
    assert found.relative_error == pytest.approx(math.pi / 2, rel=1e-6)


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
    asked = {"ball": ball, "clamp": clamp, "design": chosen}
    found = calibrated(**asked, releases=3, adjacency="replace-one")
    assert found.mechanism.design is chosen
    assert found.mechanism.clamp is clamp
    assert 1.0 - 1e-4 <= found.guarantee.epsilon_upper <= 1.0


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("imvu", {"bits": 3, "beta": 4.0, "decoder": "unbiased-at-zero"}),
        ("imvu", {"levels": 3}),
        ("skellam", {"bits": 12}),
        ("mvu", {"levels": 5}),
    ],
)
def test_choices_are_passed_on(name: str, choices: dict[str, Any]) -> None:
    mechanism = calibrated(mechanism=name, epsilon=2.0, **choices).mechanism
    for choice, value in choices.items():
        if choice == "levels":
            assert mechanism.design.spec.input_levels == value
        else:
            assert getattr(mechanism, choice) == value


@pytest.mark.parametrize("name", ["imvu", "laplace", "mvu", "sign"])
def test_pure_targets(name: str) -> None:
    asked = {"ball": L1, "delta": 0.0, "releases": 7, "adjacency": "replace-one"}
    found = calibrated(mechanism=name, epsilon=2.0, **asked)
    assert 2.0 * (1 - 1e-4) <= found.guarantee.epsilon_upper <= 2.0
    assert math.isinf(found.gaussian_squared_error)


@pytest.mark.parametrize("epsilon", [26.117, 27.705, 29.39])
def test_steep_designs_say_how_steep_doubles_made_them(epsilon: float) -> None:
    """Near e^-27 a row that sums to one exactly cannot hold the requested ratio; the account is
    the table's own.
    """
    found = calibrated(ball=Ball(Norm.L1, 1), epsilon=epsilon)
    assert certify(found.mechanism.design).meets_spec
    assert epsilon * (1 - 1e-4) <= found.guarantee.epsilon_upper <= epsilon


def test_the_search_survives_a_stepped_account() -> None:
    """An account with a jump: the private end is returned, however far from the target it is."""

    def stepped(found: Any) -> Guarantee:
        epsilon = 0.5 if found.noise_multiplier > 2.0 else 3.0
        return Guarantee(epsilon, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)

    found = calibrated(mechanism="gaussian", account=stepped)
    assert 2.0 < found.mechanism.noise_multiplier < 2.0 * (1 + 4e-6)  # a step of the search
    assert found.guarantee.epsilon_upper == 0.5
    assert found.saturated


@pytest.mark.parametrize(
    "adjacency", [Adjacency.ZERO_OUT, pytest.param(Adjacency.REPLACE_ONE, marks=pytest.mark.long)]
)
def test_a_sum_meets_the_target_from_below(adjacency: Adjacency) -> None:
    asked = {"ball": Ball(Norm.L2, 2000), "adjacency": adjacency, "releases": 20}
    found = calibrated(**asked, honest=100)
    assert 0.999 <= found.guarantee.epsilon_upper <= 1.0
    assert found.guarantee.trust is Trust.SECURE_AGGREGATION
    assert "secure-aggregation trust" in found.guarantee.sentence()
    again = found.mechanism.sum_privacy(100, adjacency) * 20
    assert again.epsilon(1e-5) == found.guarantee.epsilon_upper
    assert found.mechanism.clamp
    assert not found.saturated
    assert 1.0 < found.relative_error < 1.3  # of ideal Gaussian noise, shared out
    half = calibrated(**asked, honest=50)
    assert 1.8 < half.squared_error / found.squared_error < 2.2


@pytest.mark.long
def test_a_low_dimension_does_not_end_in_bare_signs() -> None:
    found = calibrated(ball=Ball(Norm.L2, 30), honest=100)
    assert found.mechanism.beta <= math.sqrt(30) / 2
    assert found.guarantee.epsilon_upper <= 1.0


SUMMED = {name: MECHANISMS[name] for name in ("imvu one bit l2", "imvu rotated")} | {"kept": CODES}


@pytest.mark.parametrize("name", SUMMED)
def test_a_sum_of_codes_gives_the_mean_of_what_they_stand_for(name: str) -> None:
    mechanism = SUMMED[name]
    uplink, vector = Uplink(mechanism), update(mechanism.ball)
    codes = [encode(mechanism, vector, seeded_rng(seed)).astype(np.int64) for seed in range(7)]
    mean = uplink.receive([uplink.send(vector, seeded_rng(seed)) for seed in range(7)])
    np.testing.assert_allclose(mechanism.mean_from_sum(sum(codes), 7), mean, rtol=1e-6, atol=1e-6)
    with refuses("sums of codes"):
        mechanism.mean_from_sum(np.full(codes[0].size, 8), 7)


def test_codes_of_several_bits_have_no_sums() -> None:
    wider = MECHANISMS["imvu three bits five levels"]
    with refuses("bits", 3):
        wider.mean_from_sum(np.zeros(67), 2)
    with refuses("output bits of the design", 3):
        wider.sum_privacy(10, Adjacency.ZERO_OUT)


def test_auto_keeps_the_fewest_that_cost_one_percent() -> None:
    assert fewest_kept(2.0, 10**6) == 64
    found = calibrated(ball=Ball(Norm.L2, 900), epsilon=8.0, releases=10, coordinates="auto")
    assert found.mechanism.keep == 64


SUM = {"honest": 10, "ball": Ball(Norm.L2, 5000)}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mechanism": "quantum"}, "mechanism"),
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"epsilon": 1e-9, "releases": 10**6}, "epsilon"),
    ({"delta": 1.0}, "delta"),
    ({"delta": 0.0, "mechanism": "gaussian"}, "delta"),
    ({"releases": 0}, "releases"),
    ({"adjacency": "nearby"}, "adjacency"),
    ({"ball": 1.0}, "ball"),
    ({"ball": L1, "mechanism": "gaussian"}, "norm of the ball"),
    ({"bits": 2, "levels": 4}, "levels"),
    ({"design": "x", "mechanism": "mvu"}, "design"),
    ({"rows": "shared"}, "rows"),
    ({"rows": "mine", "coordinates": 8}, "rows"),
    ({"local_steps": 3}, "local_steps"),
    ({"sampling_rate": 0.1}, "samples"),
    ({"samples": 2, "coordinates": 64, "mechanism": "mvu"}, "mechanism"),
    ({"coordinates": 0}, "coordinates"),
    ({"coordinates": 3}, "coordinates"),
    ({"coordinates": 1024}, "coordinates"),
    ({"coordinates": "few"}, "coordinates"),
    ({"coordinates": 16, "ball": L1, "delta": 0.0}, "norm of the ball"),
    ({"rotate": True, "ball": L1, "delta": 0.0}, "rotate"),
    ({"rotate": True, "mechanism": "gaussian"}, "rotate"),
    # What auto makes no use of was ignored: no batches were drawn, no steps taken, no rows shared.
    ({"mechanism": "auto", "samples": 100, "sampling_rate": 0.1}, "sampling_rate"),
    ({"mechanism": "auto", "local_steps": 3}, "local_steps"),
    ({"mechanism": "auto", "rows": "shared"}, "rows"),
    ({"mechanism": "auto", "honest": 10}, "honest"),
    ({**SUM, "delta": 0.0}, "delta"),
    ({**SUM, "epsilon": 0.0}, "epsilon"),
    ({**SUM, "honest": 1}, "honest"),
    ({**SUM, "mechanism": "gaussian"}, "mechanism"),
    ({**SUM, "mechanism": "vmvu"}, "mechanism"),
    ({**SUM, "samples": 100}, "samples"),
    ({**SUM, "bits": 2}, "bits, levels, beta, clamp or design"),
    ({**SUM, "coordinates": 64, "rows": "own"}, "rows"),
]


@pytest.mark.parametrize(("changed", "name"), REFUSED)
def test_a_refusal_names_the_field(changed: dict[str, Any], name: str) -> None:
    with refuses(name):
        calibrated(**changed)
