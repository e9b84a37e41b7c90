import numpy as np
import pytest

import quietbit
from federation.simulate.makers import mechanisms
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.registry import describe
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.report.page_mechanism import MOST_CELLS, Pictures, rebuild


def record_of(mechanism):
    return {"mechanism": describe(mechanism)}


@pytest.mark.parametrize("name", list(mechanisms(5)))
def test_a_mechanism_is_rebuilt_from_its_record_and_drawn_with_its_own_numbers(name):
    mechanism = mechanisms(40)[name]
    again = rebuild(record_of(mechanism))
    clip = 1.0
    for u in (-clip, 0.0, 0.3 * clip):
        assert again.expectation(u) == pytest.approx(mechanism.expectation(u))
        assert again.variance(u) == pytest.approx(mechanism.variance(u))
    pictures = Pictures()
    assert pictures.place(record_of(mechanism)) == 0
    assert pictures.place(record_of(mechanism)) == 0  # once
    drawn = pictures.found[0]
    middle = len(drawn["x"]) // 2
    unit = clip * mechanism.slope_at_zero if name == "sign" else clip
    assert drawn["variance"][middle] == pytest.approx(mechanism.variance(0.0) / unit**2, rel=1e-3)
    assert drawn["bias"][middle] == pytest.approx(0, abs=1e-6)
    assert drawn["typical"] == pytest.approx(40**-0.5, rel=1e-3)
    if name in ("gaussian", "laplace", "skellam"):
        assert drawn["table"] is None
    else:
        table = np.array(drawn["table"]["probabilities"])
        assert table.sum(axis=1) == pytest.approx(1, abs=1e-3)


def test_a_sign_s_slope_at_zero_is_one():
    pictures = Pictures()
    pictures.place(record_of(mechanisms(40)["sign"]))
    x, bias = np.array(pictures.found[0]["x"]), np.array(pictures.found[0]["bias"])
    near = np.abs(x) < 0.1
    assert np.abs(bias[near]).max() < 0.002


def test_what_does_not_lead_to_the_mechanism_is_not_drawn():
    record = record_of(mechanisms(40)["imvu-1"])
    record["mechanism"]["design"]["design"]["identity"] = "0" * 64
    assert rebuild(record) is None
    assert Pictures().place(record) == -1
    assert Pictures().place({**record, "mechanism": None}) == -1
    assert rebuild({**record, "mechanism": {"kind": "Dice", "bits": 1}}) is None
    assert rebuild({**record, "mechanism": {"kind": "Gaussian"}}) is None


def test_large_tables_are_thinned():
    design = quietbit.solve(quietbit.DesignSpec(60, 1, 3.0))
    pictures = Pictures()
    pictures.place(record_of(DitheredMVU(design, quietbit.Ball(Norm.L2, 9))))
    table = pictures.found[0]["table"]
    assert len(table["inputs"]) == MOST_CELLS
    assert (table["levels"], table["symbols"]) == (60, 2)
    assert (table["inputs"][0], table["inputs"][-1]) == (-1, 1)


def test_what_was_to_be_expected_stands_beside_the_mechanism():
    record = record_of(mechanisms(40)["gaussian"])
    pictures = Pictures()
    places = [
        pictures.place({**record, "expectation": words})
        for words in (None, "hard: loud.", "hard: loud.")
    ]
    assert places == [0, 1, 1]
    assert (
        pictures.found[1]["words"]
        == pictures.found[0]["words"] + " What was to be expected: hard: loud."
    )
