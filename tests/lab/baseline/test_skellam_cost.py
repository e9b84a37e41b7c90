import math

import pytest

from quietbit.errors import InvalidParameter
from quietbit_lab.baseline.skellam_cost import skellam_cost, skellam_rdp_upper
from refusals import refuses


def test_integer_orders_are_the_published_formula():
    for alpha in (2, 3, 10):
        l1, l2, v = 12.0, 4.0, 30.0
        exact = alpha * l2**2 / (2 * v) + min(
            ((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * v**2), 3 * l1 / (2 * v)
        )
        assert skellam_rdp_upper(alpha, l1, l2, v) == pytest.approx(exact, rel=1e-10)


def test_much_noise_is_nearly_gaussian():
    curve = skellam_cost(1000.0, 100.0, 1e6)
    assert curve.rdp(8.0) == pytest.approx(8 * 1e4 / (2 * 1e6), rel=1e-3)
    assert math.isfinite((curve * 100_000).epsilon(1e-5))


@pytest.mark.parametrize(
    "bad", [(0.0, 1.0, 1.0), (1.0, 2.0, 1.0), (2.0, 1.0, 0.0), (math.nan, 1.0, 1.0)]
)
def test_refusals_of_skellam(bad):
    with pytest.raises(InvalidParameter):
        skellam_cost(*bad)


@pytest.mark.parametrize("bad", [1.0, math.nan, math.inf])
def test_refuses_orders_that_are_none(bad):
    with refuses("alpha"):
        skellam_rdp_upper(bad, 2.0, 1.0, 1.0)
