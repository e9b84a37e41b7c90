"""The search that made the shipped profiles."""

import pytest

from quietbit.design.profile import shipped_profile
from quietbit.mechanism.solve_profile import certified_profile, meets
from quietbit.target import Target
from quietbit_lab.design.ascent import propose


def test_a_shipped_profile_is_found_again():
    target = Target(2.0, 1e-5, "zero-out", releases=20)
    shipped = shipped_profile(target)
    assert shipped is not None
    found = certified_profile(propose(target), target)
    assert meets(found, target)
    assert found.gain_lower == pytest.approx(shipped.gain_lower, rel=1e-5)
