"""Golden numbers of the privacy account: value, tolerance and source live in privacy.toml."""

import tomllib
from pathlib import Path

import pytest
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from core.exact.privacy_kit import sigmoid_bit
from quietbit.privacy.conversion import epsilon_from_rdp
from quietbit.privacy.cost import Cost
from quietbit.privacy.divergence import lipschitz_upper, zero_out_constant_upper
from quietbit.privacy.fisher import fisher_supremum_upper
from quietbit.privacy.interpolated import interpolated_l2_cost
from quietbit.target import Adjacency
from quietbit_lab.baseline.skellam_cost import skellam_rdp_upper

GOLDEN = tomllib.loads((Path(__file__).parent / "privacy.toml").read_text(encoding="utf-8"))
FIFTY = Cost.gaussian(1 / 8) * 50


def one_bit_zero_out_rdp() -> float:
    return interpolated_l2_cost(sigmoid_bit(2.0), 0.5, Adjacency.ZERO_OUT).rdp(10.0)


MEASURED = {
    "one_bit_fisher_supremum": lambda: fisher_supremum_upper(sigmoid_bit(5.0)),
    "one_bit_zero_out_rdp": one_bit_zero_out_rdp,
    "one_bit_lipschitz": lambda: lipschitz_upper(sigmoid_bit(1.0)),
    "one_bit_zero_out_constant": lambda: zero_out_constant_upper(sigmoid_bit(1.0)),
    "gaussian_analytic_one": lambda: Cost.gaussian(0.5).epsilon(1e-5),
    "gaussian_analytic_fifty": lambda: FIFTY.epsilon(1e-5),
    "gaussian_rdp_fifty": lambda: Cost.linear(FIFTY.slope).epsilon(1e-5),
    "dp_accounting_fifty": lambda: epsilon_from_rdp(FIFTY.rdp, 1e-5, orders=DEFAULT_RDP_ORDERS),
    "skellam_order_three": lambda: skellam_rdp_upper(3.0, 8.0, 2.0, 10.0),
}


def test_every_number_is_measured_and_has_a_source():
    assert GOLDEN.keys() == MEASURED.keys()
    assert all(entry["source"] for entry in GOLDEN.values())


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    entry = GOLDEN[name]
    measured = MEASURED[name]()
    assert measured == pytest.approx(entry["value"], rel=entry["tolerance"])
    assert measured >= entry["value"] * (1 - 1e-14)  # every one of them is an upper bound
