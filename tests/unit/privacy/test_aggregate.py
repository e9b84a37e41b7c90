from __future__ import annotations

import pytest

from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.errors import InvalidParameter
from quietbit.privacy.aggregate import AggregateConstant, aggregate_cost
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency

DESIGN = solve(DesignSpec(2, 1, 1.0), cache=False)


def test_curve_scales_with_the_squared_distance_and_composes() -> None:
    near, far = (aggregate_cost(DESIGN, distance, 200, Adjacency.ZERO_OUT) for distance in (0.25, 0.5))
    assert far.rdp(3.0) == pytest.approx(4 * near.rdp(3.0))
    assert (far * 3).rdp(3.0) == pytest.approx(3 * far.rdp(3.0))
    assert far.pure_epsilon() == float("inf")


def test_epsilon_is_close_to_a_gaussian_with_the_same_information() -> None:
    curve = aggregate_cost(DESIGN, 0.5, 1000, Adjacency.ZERO_OUT) * 100
    ideal = Cost.linear(100 * 0.5**2 / 2 / 1000)  # one client's, over n
    assert ideal.epsilon(1e-5) < curve.epsilon(1e-5) < 1.15 * ideal.epsilon(1e-5)


def test_refusals_name_the_value() -> None:
    wide = solve(DesignSpec(2, 2, 1.0), cache=False)
    with pytest.raises(InvalidParameter, match="output bits of the design must be 1"):
        AggregateConstant(wide, 0, 1, 10, Adjacency.ZERO_OUT)
    for clients in (1, 100_001, 2.5):
        with pytest.raises(InvalidParameter, match="clients"):
            AggregateConstant(DESIGN, 0, 1, clients, Adjacency.ZERO_OUT)
    with pytest.raises(InvalidParameter, match="around 1/2"):
        AggregateConstant(DESIGN, 0.6, 1, 10, Adjacency.ZERO_OUT)
    with pytest.raises(InvalidParameter, match="alpha"):
        AggregateConstant(DESIGN, 0, 1, 10, Adjacency.ZERO_OUT).upper(1.0)


def test_an_asymmetric_range_is_covered_without_the_mirror() -> None:
    one_sided = AggregateConstant(DESIGN, 0.4, 1.0, 20, Adjacency.REPLACE_ONE).upper(4.0)
    both = AggregateConstant(DESIGN, 0.0, 1.0, 20, Adjacency.REPLACE_ONE).upper(4.0)
    assert one_sided <= both * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("reach", [15.25, 16.0, 17.0])
def test_symbols_rarer_than_a_samplers_error_hide_nobody(reach: float, adjacency: Adjacency) -> None:
    """Log-odds of +-31 and beyond: the bound is one client's own, never less."""
    constant = AggregateConstant(DESIGN, 0.5 - reach, 0.5 + reach, 50, adjacency)
    for alpha in (1.1, 2.0, 4.0):
        assert constant.upper(alpha) == pytest.approx(alpha / 2)
