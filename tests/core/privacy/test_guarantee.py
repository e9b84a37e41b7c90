import math

import pytest

from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit, check_delta
from refusals import refuses


def test_the_sentence_spells_every_word_out():
    sentence = Guarantee(3.6151, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence()
    assert sentence == (
        "epsilon <= 3.616 at delta = 1e-05 for one client (zero-out adjacency: the neighbour's update "
        "is the zero vector), local trust: the server sees every payload."
    )
    other = Guarantee(
        2.0, 0.0, Unit.SAMPLE, Adjacency.REPLACE_ONE, Trust.SECURE_AGGREGATION
    ).sentence()
    assert "epsilon <= 2 at delta = 0 for one sample (replace-one adjacency" in other
    assert "only the sum" in other
    assert (
        "trusted"
        in Guarantee(2.0, 0.0, Unit.SAMPLE, Adjacency.REPLACE_ONE, Trust.CENTRAL).sentence()
    )


@pytest.mark.parametrize("epsilon", [0.0, 3e-7, 0.012341, 1.00001, 49.999999, 123456.7, math.inf])
def test_the_shown_epsilon_is_never_below_the_true_one(epsilon):
    shown = (
        Guarantee(epsilon, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence().split()[2]
    )
    assert float(shown) >= epsilon
    if math.isfinite(epsilon):
        assert float(shown) <= epsilon * 1.001


@pytest.mark.parametrize("delta", [1e-5, 1.2345612e-5, 0.1 + 0.2, 1 / 3, 9.99999999e-7, 0.0])
def test_the_shown_delta_is_never_below_the_true_one(delta):
    shown = (
        Guarantee(1.0, delta, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence().split()[6]
    )
    assert delta <= float(shown) <= delta * 1.00001


def test_numbers_of_few_digits_are_shown_as_they_are():
    sentence = Guarantee(3.6, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL).sentence()
    assert (
        "epsilon <= 3.6 at delta = 1e-05" in sentence
    )  # 3.6 in binary is a little above, which is not the user's 3.601


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_refuses_an_epsilon_that_is_none(bad):
    with refuses("epsilon_upper"):
        Guarantee(bad, 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)


@pytest.mark.parametrize("bad", [-1e-9, 1.0, 2, math.nan, math.inf, "0.1", None, True])
def test_refuses_a_delta_outside_zero_to_one(bad):
    with refuses("delta"):
        check_delta(bad)


@pytest.mark.parametrize("field", ["unit", "adjacency", "trust"])
def test_refuses_bare_strings(field):
    words = {
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.ZERO_OUT,
        "trust": Trust.LOCAL,
        field: "client",
    }
    with refuses(field, "client"):
        Guarantee(1.0, 0.0, **words)
