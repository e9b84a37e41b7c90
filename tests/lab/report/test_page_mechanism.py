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
    for u in (-1.0, 0.0, 0.3):
        assert again.expectation(u) == pytest.approx(mechanism.expectation(u))
        assert again.variance(u) == pytest.approx(mechanism.variance(u))
    pictures = Pictures()
    assert [pictures.place(record_of(mechanism)) for _ in range(2)] == [0, 0]  # once
    (drawn,) = pictures.found
    middle = len(drawn["x"]) // 2
    unit = mechanism.slope_at_zero if name == "sign" else 1.0
    assert drawn["variance"][middle] == pytest.approx(mechanism.variance(0.0) / unit**2, rel=1e-3)
    assert drawn["bias"][middle] == pytest.approx(0, abs=1e-6)
    near = [bias for x, bias in zip(drawn["x"], drawn["bias"], strict=True) if abs(x) < 0.1]
    assert name != "sign" or np.abs(near).max() < 0.002  # its slope at zero is one
    assert drawn["typical"] == pytest.approx(40**-0.5, rel=1e-3)
    assert (drawn["table"] is None) is (name in ("gaussian", "laplace", "skellam"))
    if drawn["table"] is not None:
        table = np.array(drawn["table"]["probabilities"])
        assert table.sum(axis=1) == pytest.approx(1, abs=1e-3)


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
