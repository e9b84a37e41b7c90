from __future__ import annotations

import math

import numpy as np
import pytest

from quietbit.design.closed_form import closed_form
from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit_lab.design.bound import gap_to
from quietbit_lab.design.search import search


@pytest.mark.parametrize("epsilon", [0.01, 0.25, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("levels", [2, 3, 8, 100])
def test_one_bit_exact_is_the_published_formula(levels, epsilon):
    """mathematics.md section 1: z = 1/2 + h/(e^(eps h) - 1), P[i, 2] = 1/2 + (x_i - 1/2)/(2 z)."""
    design = closed_design(DesignSpec(levels, 1, epsilon))
    h = 1 / (levels - 1)
    z = 0.5 + h / math.expm1(epsilon * h)
    if levels == 2:
        assert z == pytest.approx(0.5 / math.tanh(epsilon / 2), rel=1e-12)
    assert np.abs(design.alphabet - [0.5 - z, 0.5 + z]).max() <= 1e-9 * max(1, z)
    x = np.linspace(0, 1, levels)
    assert np.abs(design.probabilities[:, 1] - (0.5 + (x - 0.5) / (2 * z))).max() <= 1e-9


@pytest.mark.parametrize("privacy", ["metric-l1", "metric-l2", "strict"])
def test_the_general_solver_finds_the_one_bit_formula(privacy):
    spec = DesignSpec(5, 1, 2.0, privacy)
    formula = closed_form(spec)
    assert formula is not None
    table, alphabet = search(spec)  # knows nothing of the formula but the width it starts from
    assert np.abs(alphabet - formula[1]).max() < 1e-5
    assert np.abs(table - formula[0]).max() < 1e-5


@pytest.mark.parametrize(
    "spec",
    [
        DesignSpec(2, 1, 2.0),
        DesignSpec(2, 1, 2.0, "metric-l2"),
        DesignSpec(2, 2, 2.0, "strict"),
        DesignSpec(2, 3, 1.0, bias=100.0),
        DesignSpec(2, 3, 0.5, bias=100.0),
        DesignSpec(2, 3, 5.0, bias=3.0),
    ],
)
def test_two_levels_are_optimal(spec):
    assert gap_to(closed_design(spec)) < 1e-3


def test_nothing_else_has_a_formula():
    assert closed_form(DesignSpec(3, 2, 1.0)) is None
    assert closed_form(DesignSpec(3, 1, 1.0, bias=100.0)) is None
