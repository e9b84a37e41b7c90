import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quietbit._search import bisect


@given(st.floats(1e-6, 1e6), st.booleans(), st.booleans())
def test_it_ends_where_the_condition_holds_next_to_where_it_does_not(edge, above, by_ratio):
    """The exact boundary is known; bisect finds it to the last double, from the right side."""
    if above:
        found = bisect(lambda x: x >= edge, 1e7, 1e-7, by_ratio=by_ratio)
        assert edge <= found <= edge * (1 + 1e-12)
    else:
        found = bisect(lambda x: x <= edge, 1e-7, 1e7, by_ratio=by_ratio)
        assert edge * (1 - 1e-12) <= found <= edge


@pytest.mark.parametrize("halvings", [0, 1, 5])
def test_too_few_steps_stay_on_the_right_side(halvings):
    asked = []

    def holds(x):
        asked.append(x)
        return x <= math.pi

    assert bisect(holds, 0.0, 8.0, halvings=halvings) <= math.pi
    assert len(asked) == halvings


def test_it_stops_when_the_ends_are_near():
    assert 0.9 <= bisect(lambda x: x <= 1, 0.5, 2.0, relative=0.1) <= 1


def test_a_nan_condition_never_counts_as_holding():
    assert bisect(lambda x: float("nan") < x, 1.0, 2.0) == 1.0
