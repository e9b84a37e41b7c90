"""What to expect of a run: the noise is that of the mechanism, and what would help does help."""

import math

import pytest
from attrs import evolve

import quietbit
from quietbit.mechanism.forecast import (
    HOPELESS_ABOVE,
    USEFUL_UP_TO,
    Forecast,
    Verdict,
    forecast,
)
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.rotation import rotation_for
from quietbit.target import Trust
from refusals import refuses

BALL = quietbit.Ball("l2", 1000)
DESIGN = quietbit.solve(quietbit.DesignSpec(2, 1, 4.0))


def test_the_noise_of_a_mean_is_that_of_its_updates():
    """By hand for Gaussian noise of 2 clips on each of 1,000 coordinates."""
    found = forecast(quietbit.Gaussian(BALL, 2.0), cohort=50, rounds=16, clients=400)
    assert found.noise == pytest.approx(2 * math.sqrt(1000 / 50))
    assert found.run_noise == pytest.approx(found.noise / 4)
    central = forecast(quietbit.Gaussian(BALL, 2.0), cohort=50, rounds=16, trust="central")
    assert central.noise == pytest.approx(2 * math.sqrt(1000) / 50)


@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_as_many_clients_or_as_few_parameters_make_a_useful_run(trust):
    run = {"cohort": 50, "rounds": 16, "clients": 400, "trust": trust}
    found = forecast(quietbit.Gaussian(BALL, 2.0), **run)
    more = math.ceil(50 * found.clients_needed / 400)  # as many of them in a round as before
    crowd = {**run, "cohort": more, "clients": 8 * more}
    helped = forecast(quietbit.Gaussian(BALL, 2.0), **crowd)
    assert helped.run_noise == pytest.approx(USEFUL_UP_TO, rel=0.01)
    small = quietbit.Gaussian(quietbit.Ball("l2", 400), 0.1)
    allowed = math.floor(forecast(small, **run).parameters_allowed)
    assert allowed >= 1
    fewer = evolve(small, ball=quietbit.Ball("l2", allowed))
    assert forecast(fewer, **run).run_noise == pytest.approx(USEFUL_UP_TO, rel=0.01)


def test_rows_that_all_clients_keep_are_not_averaged_out():
    inner = quietbit.Gaussian(quietbit.Ball("l2", 64), 2.0)
    own, shared = Projected(inner, BALL), Projected(inner, BALL, rows=5)
    projection = 1 / 64 * (1 - 64 / 1024)
    assert (own.error().shared, shared.error().shared) == (0.0, pytest.approx(projection))
    many = 10_000
    alone = forecast(own, cohort=many).noise ** 2
    together = forecast(shared, cohort=many).noise ** 2
    assert together - alone == pytest.approx(1000 * projection * (1 - 1 / many))


def test_a_decoder_makes_no_difference_to_what_is_expected():
    plain = quietbit.InterpolatedMVU(DESIGN, BALL, decoder="alphabet")
    found, other = (
        forecast(one, cohort=9).noise for one in (plain, evolve(plain, decoder="unbiased-at-zero"))
    )
    assert plain.error().gain > 1.9
    assert found == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize(
    ("multiplier", "verdict"),
    [
        (0.01, Verdict.USEFUL),
        (0.05, Verdict.NOISY),
        (0.2, Verdict.UNCERTAIN),
        (5.0, Verdict.HOPELESS),
    ],
)
def test_the_sentence_says_what_it_comes_to(multiplier, verdict):
    found = forecast(quietbit.Gaussian(BALL, multiplier), cohort=20, rounds=4)
    assert found.verdict is verdict
    text = found.sentence()
    assert text.startswith(f"{verdict.value}: the noise in the mean of 20 updates is ")
    assert text.endswith(".")
    assert ("a useful run takes about" in text) == (verdict is not Verdict.USEFUL)


def test_secure_aggregation_is_named_only_where_it_would_help():
    def said(multiplier, **given):
        return forecast(
            quietbit.Gaussian(BALL, multiplier), **{"cohort": 400, "rounds": 16, **given}
        ).sentence()

    assert said(2.0).endswith(" clients, or secure aggregation.")
    assert said(20.0).endswith(" (secure aggregation would make it uncertain instead).")
    assert "secure aggregation" not in said(5000.0)
    assert "secure aggregation" not in said(400.0, trust="central")
    assert "secure aggregation" not in said(0.1)


def test_one_update_alone_is_not_judged():
    text = forecast(quietbit.Gaussian(BALL, 5.0), cohort=1).sentence()
    assert (
        text
        == "the noise in one update is 160 times the clip; a useful run takes about 2.5 million clients."
    )


@pytest.mark.parametrize(
    ("noise", "response"), [(math.nan, 1.0), (math.inf, 1.0), (0.01, 0.001), (0.01, 0.0)]
)
def test_no_number_and_what_hardly_comes_through_are_hopeless(noise, response):
    found = Forecast(noise, 10, 2, 1, 2, Trust.LOCAL, response=response)
    assert found.verdict is Verdict.HOPELESS
    assert HOPELESS_ABOVE > USEFUL_UP_TO


@pytest.mark.parametrize(
    ("name", "value"), [("cohort", 0), ("rounds", 0), ("clients", 3), ("trust", "x")]
)
def test_what_has_no_meaning_is_refused(name, value):
    with refuses(name, value):
        forecast(quietbit.Gaussian(BALL, 1.0), **{"cohort": 20, name: value})


def test_codes_that_saturate_shorten_an_update_by_what_is_said():
    """Without a rotation by what one large coordinate loses; with one by little."""
    mechanism = quietbit.InterpolatedMVU(DESIGN, quietbit.Ball("l2", 100), beta=8.0, clamp=True)
    found = forecast(mechanism, cohort=10)
    assert found.response == pytest.approx(mechanism.expectation(1.0), rel=1e-9)
    assert found.response < 1 / 8
    assert f"up to {100 * (1 - found.response):.0f} % too short" in found.sentence()
    rotated = evolve(mechanism, ball=quietbit.Ball("l2", 4096), rotation=rotation_for(4096))
    assert 0.93 < forecast(rotated, cohort=10).response < 1
    few, many = (
        Projected(evolve(mechanism, ball=quietbit.Ball("l2", keep)), quietbit.Ball("l2", 5000))
        for keep in (64, 1024)
    )
    assert forecast(few, cohort=10).response < forecast(many, cohort=10).response
    assert forecast(quietbit.Gaussian(BALL, 5.0), cohort=10).response == 1


@pytest.mark.parametrize("use", [lambda found: quietbit.forecast(found, cohort=3), quietbit.Uplink])
def test_a_calibration_is_answered_with_where_its_mechanism_is(use):
    found = quietbit.calibrate(
        "gaussian", ball=quietbit.Ball("l2", 3), epsilon=1.0, delta=1e-5, adjacency="zero-out"
    )
    with refuses("mechanism", "Calibration"):
        use(found)
