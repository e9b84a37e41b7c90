from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietbit.design.certify import certify
from quietbit.design.table import DesignSpec
from quietbit.errors import InvalidParameter
from quietbit_lab.design.bound import gap_to, lower_bound
from quietbit_lab.design.search import solve

# Mean squared errors of a first independent try (exact bias): ours must not exceed them.
EXACT = [
    ((8, 3, 5.0, "metric-l1"), 0.06878),
    pytest.param((32, 3, 2.0, "metric-l1"), 0.3945, marks=pytest.mark.long),
    pytest.param((8, 3, 5.0, "strict"), 0.01214, marks=pytest.mark.long),
]
# J = mse + 100 * mean squared bias reached by the published solver, to the digits it was reported
# with.
PENALTY = [
    ((2, 1, 1.0, "metric-l1"), 0.8883),
    pytest.param((8, 3, 5.0, "strict"), 0.01261, marks=pytest.mark.long),
    ((8, 3, 5.0, "metric-l1"), 0.08676),
    pytest.param((32, 3, 2.0, "metric-l1"), 0.3623, marks=pytest.mark.long),
    pytest.param((128, 3, 4.0, "metric-l1"), 0.1212, marks=pytest.mark.long),
    ((512, 1, 1.0, "metric-l1"), 1.17855),
]


@pytest.mark.parametrize(("arguments", "most"), EXACT)
def test_exact_designs_reach_the_known_errors(arguments, most):
    design = solve(DesignSpec(*arguments), cache=False)
    measured = certify(design)
    assert measured.bias_upper <= 1e-9
    assert measured.mean_squared_error <= most
    assert 0 < lower_bound(design) <= measured.objective
    assert gap_to(design) < 0.03


@pytest.mark.parametrize(("arguments", "most"), PENALTY)
def test_penalty_designs_beat_the_published_solver(arguments, most):
    measured = certify(solve(DesignSpec(*arguments, bias=100.0), cache=False))
    assert measured.objective <= most
    assert measured.objective >= measured.mean_squared_error


def exp_upper_power(epsilon: float, distance: Fraction) -> Fraction:
    """e^(epsilon distance) rounded down at fifty digits: a ratio below it is certainly within
    the bound.
    """
    with localcontext() as context:
        context.prec = 50
        exponent = Fraction(epsilon) * distance
        power = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
    return Fraction(power) * (1 - Fraction(1, 10**45))


def distances(spec: DesignSpec):
    n = spec.input_levels
    power = {"metric-l1": 1, "metric-l2": 2, "strict": 0}[spec.privacy]
    for i in range(n):
        for k in range(i + 1, n):
            yield i, k, Fraction(k - i, n - 1) ** power


@pytest.mark.long
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    levels=st.integers(2, 9),
    bits=st.integers(1, 3),
    epsilon=st.floats(0.25, 20.0),
    privacy=st.sampled_from(["metric-l1", "metric-l2", "strict"]),
    bias=st.sampled_from(["exact", 1.0, 100.0]),
)
def test_the_stored_numbers_of_any_design_are_private(levels, bits, epsilon, privacy, bias):
    assert_private(DesignSpec(levels, bits, epsilon, privacy, bias))


@pytest.mark.parametrize(
    "spec",
    [
        (2, 3, 20.0, "strict", 1.0),
        (5, 1, 2.5, "metric-l1", "exact"),
        (6, 2, 0.7, "metric-l2", 100.0),
    ],
)
def test_the_stored_numbers_are_private(spec):
    assert_private(DesignSpec(*spec))


def assert_private(spec):
    """Every pair of levels, every symbol, in rational arithmetic: an oracle that shares no code
    with certify.
    """
    design = solve(spec, cache=False)
    measured = certify(design)
    table = [[Fraction(p) for p in row] for row in design.probabilities.tolist()]
    assert all(sum(row) == 1 for row in table)
    assert all(p > 0 for row in table for p in row)
    assert measured.epsilon_upper <= spec.epsilon * (1 + 1e-6)
    for i, k, distance in distances(spec):
        most = exp_upper_power(measured.epsilon_upper, distance)
        for p, q in zip(table[i], table[k], strict=True):
            assert p <= most * q
            assert q <= most * p
    assert np.array_equal(design.probabilities, design.probabilities[::-1, ::-1])
    assert np.all(design.alphabet + design.alphabet[::-1] == 1.0)
    if spec.bias == "exact":
        assert np.abs(design.probabilities @ design.alphabet - spec.levels).max() <= 1e-9


def test_the_cache_is_used_and_a_damaged_one_is_not(monkeypatch, tmp_path):
    from quietbit.design import store
    from quietbit.design.table import Design

    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path))
    spec = DesignSpec(3, 2, 1.5)
    first = solve(spec)
    (file,) = (tmp_path / "designs").iterdir()
    assert solve(spec).identity() == first.identity()
    file.write_text(file.read_text().replace("0.", "0.1", 1))
    assert store.cached(Design, spec) is None
    assert solve(spec).identity() == first.identity()
    assert store.cached(Design, spec) is not None


def test_an_unwritable_cache_does_not_matter(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("QUIETBIT_CACHE", str(blocked))
    assert solve(DesignSpec(3, 1, 1.25)).alphabet.shape == (2,)


def test_an_infeasible_spec_is_refused_in_one_sentence():
    with pytest.raises(InvalidParameter, match="No design was found for DesignSpec") as refusal:
        solve(DesignSpec(512, 3, 0.25, "metric-l2"))
    assert "\n" not in str(refusal.value)
