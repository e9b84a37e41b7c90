import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from quietbit.design.certify import certify
from quietbit.design.closed_form import unbiased_half_width
from quietbit.design.table import DesignSpec
from quietbit_lab.design.bound import objective_lower_bound
from quietbit_lab.design.search import solve


def linear_program(spec: DesignSpec, alphabet: np.ndarray) -> float:
    """The exact-bias optimum for a fixed alphabet, by HiGHS with every pair of levels: an
    independent oracle.
    """
    n, x, symbols = spec.input_levels, spec.levels, np.eye(len(alphabet))
    cost = np.square(alphabet[None, :] - x[:, None]).ravel() / n
    sums, means = np.kron(np.eye(n), np.ones(len(alphabet))), np.kron(np.eye(n), alphabet)
    power = {"metric-l1": 1, "metric-l2": 2, "strict": 0}[spec.privacy]
    rows = []
    for i, k in itertools.permutations(range(n), 2):
        ratio = np.exp(spec.epsilon * abs(x[i] - x[k]) ** power)
        rows.append(np.kron(np.eye(n)[i] - ratio * np.eye(n)[k], symbols))
    limits = np.zeros(len(rows) * len(alphabet))
    totals = np.concatenate([np.ones(n), x])
    return float(linprog(cost, np.vstack(rows), limits, np.vstack([sums, means]), totals).fun)


@pytest.mark.parametrize("privacy", ["metric-l1", "metric-l2", "strict"])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_no_alphabet_of_41_values_beats_the_bound(privacy, epsilon):
    spec = DesignSpec(4, 2, epsilon, privacy)
    bound = objective_lower_bound(spec)
    width = unbiased_half_width(spec)
    fine = linear_program(spec, 0.5 + np.linspace(-1.2 * width, 1.2 * width, 41))
    assert bound <= fine * (1 + 1e-7)
    assert bound >= 0.9 * fine  # and it is not a trivial bound


def test_the_solver_agrees_with_highs_for_its_alphabet():
    spec = DesignSpec(5, 2, 3.0)
    design = solve(spec, cache=False)
    assert certify(design).objective == pytest.approx(
        linear_program(spec, design.alphabet), rel=2e-5
    )
