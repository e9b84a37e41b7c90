"""A comparison as a picture: what is drawn is what was computed."""

import pytest

from quietbit.plan.compare import compare
from quietbit_lab.plot.compare import plot_comparison
from quietbit_lab.plot.figure import save_figure

pytest.importorskip("matplotlib", reason="needs quietbit-lab")
GIVEN = {"epsilon": 8.0, "delta": 1e-5, "adjacency": "zero-out", "clients": 300, "cohort": 100}


def test_noise_over_releases_and_over_bytes(tmp_path):
    found = compare(650, releases=5, **GIVEN)
    told = []
    figure = plot_comparison(found, (1,), report=lambda fraction, message: told.append(message))
    assert told == ["1 releases", "5 releases"]
    left, right = figure.axes
    drawn = {line.get_label(): line for line in left.lines}
    assert {"imvu", "vmvu", "imvu, secure-aggregation", "gaussian, central"} <= set(drawn)
    assert "laplace" not in drawn, "what cannot reach the target has no line"
    vector = next(row for row in found.rows if row.name == "vmvu")
    assert drawn["vmvu"].get_xdata().tolist() == [1, 5]
    assert drawn["vmvu"].get_ydata()[-1] == pytest.approx(vector.expected.run_noise)
    assert drawn["vmvu"].get_ydata()[0] < drawn["vmvu"].get_ydata()[-1], (
        "few releases are its strength"
    )
    sizes = {size for line in right.lines for size in line.get_xdata()}
    assert sizes == {row.payload_bytes for row in found.rows if row.expected is not None}
    assert [text.get_text() for text in right.texts] == ["useful", "hard", "hopeless"]
    assert save_figure(figure, tmp_path / "figure.svg").read_bytes().lstrip().startswith(b"<?xml")


def test_the_same_request_is_asked_for_other_releases():
    """One trust stays one, and evaluations cost at every point; some leave no updates."""
    found = compare(650, releases=5, trust="central", evaluate=0.5, **GIVEN)
    (line,) = plot_comparison(found, (2, 16)).axes[0].lines
    other = compare(650, releases=2, trust="central", evaluate=0.5, **GIVEN)
    assert line.get_label() == "gaussian, central"
    assert line.get_xdata().tolist() == [2, 5]
    assert line.get_ydata().tolist() == [one.rows[0].expected.run_noise for one in (other, found)]
