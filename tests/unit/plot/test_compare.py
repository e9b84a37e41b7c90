"""A comparison as a picture: what is drawn is what was computed."""

import pytest

from quietbit.plan.compare import compare
from quietbit.plot.compare import compare_releases, plot_comparison
from quietbit.plot.figure import render_figure

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")


def test_noise_over_releases_and_over_bytes():
    given = {"epsilon": 8.0, "delta": 1e-5, "adjacency": "zero-out", "clients": 300, "cohort": 100}
    found = compare(650, releases=5, **given)
    told = []
    over = compare_releases(found, (1,), report=lambda fraction, message: told.append(message))
    assert (sorted(over), told) == ([1, 5], ["1 releases", "5 releases"])
    assert over[5] is found
    assert over[1].rounds == 3
    figure = plot_comparison(found, over)
    left, right = figure.axes
    drawn = {line.get_label(): line for line in left.lines}
    assert {"imvu", "vmvu", "imvu, secure-aggregation", "gaussian, central"} <= set(drawn)
    assert "laplace" not in drawn, "what cannot reach the target has no line"
    vector = next(row for row in found.rows if row.name == "vmvu")
    assert drawn["vmvu"].get_ydata()[-1] == pytest.approx(vector.expected.run_noise)
    assert drawn["vmvu"].get_ydata()[0] < drawn["vmvu"].get_ydata()[-1], "few releases are its strength"
    sizes = {size for line in right.lines for size in line.get_xdata()}
    assert sizes == {row.payload_bytes for row in found.rows if row.expected is not None}
    assert [text.get_text() for text in right.texts] == ["useful", "hard", "hopeless"]
    assert render_figure(figure, "svg").lstrip().startswith(b"<?xml")


def test_one_trust_stays_one():
    given = {"epsilon": 8.0, "delta": 1e-5, "adjacency": "zero-out", "clients": 300, "cohort": 100}
    over = compare_releases(compare(650, releases=5, trust="central", **given), (2,))
    assert all(row.trust.value == "central" for one in over.values() for row in one.rows)
