import pytest

from quietbit_lab.plot.figure import MECHANISMS
from quietbit_lab.report.plots import plot_training
from refusals import refuses

LOOKS = {"a": "imvu", "b": "gaussian"}


def test_every_run_is_named_with_its_last_accuracy():
    figure = plot_training(
        {"a": [(1, 0.1), (10, 0.5)], "b": [(1, 0.2), (10, 0.52)]}, "title", LOOKS
    )
    (axes,) = figure.axes
    said = [text.get_text() for text in axes.texts]
    assert said == ["a  50.0 %", "b  52.0 %"]
    heights = [text.get_position()[1] for text in axes.texts]
    assert heights[1] - heights[0] >= 4.5  # labels of close runs do not overlap
    assert len(axes.lines) == 4


@pytest.mark.parametrize("curves", [{}, {"a": []}])
def test_nothing_to_draw_is_refused(curves):
    with refuses("curves", list(curves)):
        plot_training(curves, "title", LOOKS)


def test_a_mechanism_keeps_its_colour():
    figure = plot_training({"a": [(1, 0.5)], "b": [(1, 0.9)]}, "title", LOOKS)
    colours = {line.get_color() for line in figure.axes[0].lines}
    assert colours == {MECHANISMS["imvu"].light, MECHANISMS["gaussian"].light}
