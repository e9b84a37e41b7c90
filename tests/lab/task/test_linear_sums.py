import math

import numpy as np
import pytest
import torch

import quietbit
from path import decode
from quietbit.mechanism.ball import Ball, Norm
from quietbit.privacy.guarantee import Trust
from quietbit_lab.task.linear_sums import DrawKey, again_upper, bit_meaning, cohort_mean, exact_mean, kind_of
from unit.simulate.makers import mechanisms

BALL = Ball(Norm.L2, 0.5, 40)
TAXI = Ball(Norm.L1, 0.5, 40)


def design(epsilon, levels=2, bits=1):
    return quietbit.solve(quietbit.DesignSpec(levels, bits, epsilon))


def interpolated(epsilon, **given):
    return quietbit.InterpolatedMVU(design(epsilon), BALL, **given)


WIDE = Ball(Norm.L2, 0.5, 40_000)  # in so many dimensions MVU never draws again
ONE_BIT = [
    quietbit.DitheredMVU(design(2.0, levels=65), WIDE),
    interpolated(0.25),
    interpolated(5.0),
    interpolated(2.0, beta=0.5, decoder="unbiased-at-zero"),
    interpolated(1.0, beta=8.0, clamp=True),
    quietbit.Sign(quietbit.Gaussian(BALL, 2.0)),
    quietbit.Sign(quietbit.Laplace(TAXI, 0.3)),
]


def probability(kind, t):
    if kind.startswith("sign-normal"):
        return 0.5 * math.erfc(-t / math.sqrt(2))
    if kind.startswith("sign-laplace"):
        return 0.5 * math.exp(t) if t < 0 else 1 - 0.5 * math.exp(-t)
    if kind.startswith("uniform"):
        return (1 + t) / 2
    return 1 / (1 + math.exp(-t))


@pytest.mark.parametrize("mechanism", ONE_BIT)
def test_one_bit_laws_are_the_mechanisms_own(mechanism):
    """Probability, decoded values and cut of the kernel's law are those of law, expectation and decode."""
    kind, meaning = kind_of(mechanism, 100), bit_meaning(mechanism)
    for value in np.linspace(-0.5, 0.5, 41):
        t = max(-meaning.reach, min(meaning.reach, meaning.gain * value))
        one = probability(kind, t)
        assert meaning.low * (1 - one) + meaning.high * one == pytest.approx(mechanism.expectation(value), abs=1e-13)
        if isinstance(mechanism, quietbit.InterpolatedMVU):
            assert one == pytest.approx(mechanism.distribution(value)[1], abs=1e-14)
    codes = np.zeros(mechanism.domain.dimension, dtype=np.uint8)
    codes[1] = 1
    assert decode(mechanism, codes)[:2].tolist() == [meaning.low, meaning.high]


def test_kinds_are_those_of_the_reach():
    """Equal for every clip, as long as a coordinate can be, cut where the mechanism clamps."""

    def kind(clip, share=1.0, **given):
        return kind_of(quietbit.InterpolatedMVU(design(2.0), Ball(Norm.L2, clip, 40), **given), 10, share=share)

    assert len({kind(clip) for clip in (0.25, 0.3, 1.0, 7.7, 8.0)}) == 1
    assert kind(1.0, 0.25) == "logistic 1.0"  # the power of two above 1/2 and a little
    assert kind(1.0, 0.2) == kind(1.0, 0.15) == "logistic 0.5"
    assert kind(1.0, 1e-6) == "logistic 0.25"
    for given in ({}, {"beta": 8.0, "clamp": True}):
        name, reach = kind(1.0, **given).split()
        assert (name, float(reach)) == ("logistic", pytest.approx(2.0, rel=1e-9))
    assert kind(1.0, 0.05, beta=8.0, clamp=True) == "logistic 1.0"
    assert kind_of(quietbit.Sign(quietbit.Gaussian(BALL, 0.5)), 10, share=0.5) == "sign-normal 2.0"
    assert kind_of(quietbit.Sign(quietbit.Gaussian(BALL, 1e-6)), 10) == "sign-normal 5.0"  # where it is cut


def test_what_goes_row_by_row_and_what_is_refused():
    found = {name: kind_of(mechanism, 600) for name, mechanism in mechanisms(40).items() if name != "skellam"}
    assert found["mvu"] == "rows"
    assert found["imvu-3"].startswith("codes ")
    assert found["imvu-l1"].startswith("logistic ")
    assert (found["gaussian"], found["laplace"], found["imvu-1"]) == ("gaussian", "laplace", found["imvu-1"])
    assert found["imvu-1"].startswith("logistic ")
    assert kind_of(quietbit.Gaussian(BALL, 1.0), 10, Trust.CENTRAL) == "central"
    with pytest.raises(quietbit.InvalidParameter, match="more bits"):
        kind_of(quietbit.Skellam(BALL, 2.0, 6), 10)
    with pytest.raises(quietbit.InvalidParameter, match="odd number of levels"):
        kind_of(quietbit.DitheredMVU(design(2.0, levels=8), BALL), 10)


def test_mvu_is_counted_where_its_dither_is_never_drawn_again():
    """The bound on the chance holds against drawing dithers, for the updates that are longest when dithered."""
    assert kind_of(quietbit.DitheredMVU(design(2.0, levels=65), WIDE), 600).startswith("uniform ")
    assert again_upper(quietbit.DitheredMVU(design(2.0, levels=65), Ball(Norm.L2, 8.0, 39_700))) < 1e-160
    assert again_upper(quietbit.DitheredMVU(design(2.0, levels=65), Ball(Norm.L1, 0.5, 40_000))) == 1.0
    assert kind_of(quietbit.DitheredMVU(design(2.0, 5, 2), WIDE), 600) == "rows"
    rng, some = np.random.default_rng(5), 0
    for dimension, levels in ((400, 9), (400, 17), (900, 17), (1600, 9)):
        mechanism = quietbit.DitheredMVU(design(2.0, levels), Ball(Norm.L2, 1.0, dimension))
        half, upper = (levels - 1) / 2, again_upper(mechanism)
        some += upper < 0.5
        for active in (1, dimension // 4, dimension):  # spread over some coordinates or all
            value = half / math.sqrt(active)
            part = value - math.floor(value)
            points = math.floor(value) + (rng.random((1000, active)) < part)
            again = (np.square(points).sum(axis=1) > (mechanism.reach * (levels - 1)) ** 2).mean()
            assert again <= upper + 6 * math.sqrt(upper / 1000)  # six deviations: 1e-9
    assert some >= 2  # of the bounds say something


def test_without_noise_the_mean_is_the_mean_of_outer_products():
    rng = np.random.default_rng(0)
    errors, features = rng.standard_normal((2, 3, 5)), rng.standard_normal((5, 8)).astype(np.float32)
    wanted = np.einsum("gkm,mf->gkf", errors, features) / 5
    key = DrawKey.several([bytes(32)], torch.device("cpu"))[0]
    mean = cohort_mean("none", [None, None], [0, 1], 5, torch.device("cpu"))
    for found in (
        exact_mean(torch.from_numpy(errors), torch.from_numpy(features)),
        mean.mean(torch.from_numpy(errors), torch.from_numpy(features), key),
    ):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_codes_of_one_design_share_a_sampler_whatever_the_clip():
    """Means scale with the clip, and lie between the decoded values."""
    made = [quietbit.InterpolatedMVU(design(3.0, 5, 2), Ball(Norm.L2, clip, 24), 2.0) for clip in (0.5, 8.0)]
    assert kind_of(made[0], 30) == kind_of(made[1], 30)
    rng = np.random.default_rng(0)
    error = torch.from_numpy(rng.standard_normal((1, 3, 30)) * 0.1)
    errors, features = torch.cat([error, 16 * error]), torch.from_numpy(rng.random((30, 8), dtype=np.float32) * 0.3)
    mean = cohort_mean(kind_of(made[0], 30), made, [5, 5], 30, torch.device("cpu"))  # equal words for both
    low, high = mean.mean(errors, features, DrawKey.several([bytes(32)], torch.device("cpu"))[0]).numpy()
    np.testing.assert_allclose(high, 16 * low, rtol=1e-5)
    assert np.all((made[0].values[0] <= low) & (low <= made[0].values[-1]))


def test_equal_keys_give_equal_draws_and_others_do_not():
    errors, features = torch.zeros((2, 3, 50), dtype=torch.float64), torch.zeros((50, 8))
    keys = DrawKey.several([bytes([k]) * 32 for k in (1, 1, 2)], torch.device("cpu"))
    for kind, mechanism in (("gaussian", quietbit.Gaussian(BALL, 2.0)), ("logistic 1.0", interpolated(1.0))):
        mean = cohort_mean(kind, [mechanism] * 2, [0, 1], 50, torch.device("cpu"))
        first, again, other = (mean.mean(errors, features, key) for key in keys)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert not torch.equal(first[0], first[1])
