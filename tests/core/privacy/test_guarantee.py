import math

import pytest

from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Trust, Unit

TERMS = {"unit": Unit.CLIENT, "adjacency": Adjacency.ZERO_OUT, "trust": Trust.LOCAL}


def sentence(epsilon, delta, **terms):
    return Guarantee(epsilon, delta, **(TERMS | terms)).sentence()


def test_the_sentence_spells_every_word_out():
    assert sentence(3.6151, 1e-5) == (
        "epsilon <= 3.616 at delta = 1e-05 for one client (zero-out adjacency: the neighbour's update "
        "is the zero vector), local trust: the server sees every payload."
    )
    other = sentence(
        2.0,
        0.0,
        unit=Unit.SAMPLE,
        adjacency=Adjacency.REPLACE_ONE,
        trust=Trust.SECURE_AGGREGATION,
    )
    assert "epsilon <= 2 at delta = 0 for one sample (replace-one adjacency" in other
    assert "only the sum" in other
    assert "trusted" in sentence(2.0, 0.0, trust=Trust.CENTRAL)


@pytest.mark.parametrize("epsilon", [0.0, 3e-7, 0.012341, 1.00001, 49.999999, 123456.7, math.inf])
@pytest.mark.parametrize("delta", [1e-5, 1.2345612e-5, 0.1 + 0.2, 1 / 3, 9.99999999e-7, 0.0])
def test_the_shown_numbers_are_never_below_the_true_ones(epsilon, delta):
    text = sentence(epsilon, delta)
    assert epsilon <= float(text.split()[2]) <= epsilon * 1.001
    assert delta <= float(text.split("delta = ")[1].split()[0]) <= delta * 1.00001


def test_numbers_of_few_digits_are_shown_as_they_are():
    """3.6 in binary is a little above, which is not the user's 3.601."""
    assert "epsilon <= 3.6 at delta = 1e-05" in sentence(3.6, 1e-5)
