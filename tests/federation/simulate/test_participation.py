import numpy as np
import pytest

import quietbit
from quietbit.federation.simulate.participation import Schedule, releases_per_client


def test_each_once_is_fair_to_the_round():
    schedule = Schedule(10, 3, seed=1)
    for epoch in range(4):
        seen = np.concatenate([schedule.cohort(3 * epoch + k) for k in range(3)])
        assert np.unique(seen).size == 9
    assert releases_per_client(schedule, 12).max() <= 4


@pytest.mark.parametrize(("clients", "size"), [(5, 6), (5, 0)])
def test_refusals(clients, size):
    with pytest.raises(quietbit.InvalidParameter):
        Schedule(clients, size, 0)
