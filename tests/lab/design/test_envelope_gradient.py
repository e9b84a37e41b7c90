"""The gradient of the inner optimum in the alphabet: multipliers against finite differences."""

import numpy as np
import pytest

from quietbit.design.table import DesignSpec
from quietbit_lab.design.interior_point import CentralPath

GAP = 1e-3


def barrier_value(spec: DesignSpec, alphabet: np.ndarray) -> float:
    return CentralPath(spec).solve(alphabet, GAP).barrier_objective


@pytest.mark.parametrize("privacy", ["metric-l1", "metric-l2", "strict"])
@pytest.mark.parametrize("bias", ["exact", 100.0])
def test_the_gradient_is_that_of_the_barrier_value(privacy, bias):
    spec = DesignSpec(5, 2, 8.0 if privacy == "metric-l2" else 4.0, privacy, bias)
    # The barrier is measured in units of the outermost value, so only inner values are moved.
    alphabet = 0.5 + np.array([-2.0, -0.3, 0.3, 2.0])
    gradient = CentralPath(spec).solve(alphabet, GAP).alphabet_gradient
    for j in (1, 2):
        step = np.zeros(4)
        step[j] = 1e-4
        difference = (
            barrier_value(spec, alphabet + step) - barrier_value(spec, alphabet - step)
        ) / 2e-4
        assert gradient[j] == pytest.approx(difference, rel=1e-3, abs=1e-6)
