"""Random profiles, and hockey-stick divergences of finite pairs."""

import numpy as np
from hypothesis import strategies as st

from quietbit.design.profile import Profile


@st.composite
def profiles(draw, most=8, spread=6.0):
    count = draw(st.integers(1, most - 1))
    gaps = draw(st.lists(st.floats(1e-3, 1.5), min_size=count, max_size=count))
    start = draw(st.floats(-4.0, 1.0))
    rises = draw(st.lists(st.floats(0.0, spread / count), min_size=count, max_size=count))
    rises[draw(st.integers(0, count - 1))] += 0.05
    return Profile.from_weights(start + np.cumsum(gaps), np.exp(np.concatenate(([0.0], np.cumsum(rises)))))


def hockey_stick(upper, lower, a):
    return float(np.maximum(upper - a * lower, 0.0).sum())
