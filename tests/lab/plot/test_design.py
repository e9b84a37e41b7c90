import numpy as np
import pytest

from quietbit import DesignSpec, solve
from quietbit_lab.plot.design import plot_design
from refusals import refuses


@pytest.mark.parametrize(
    "spec", [DesignSpec(2, 1, 1.0), DesignSpec(8, 4, 2.0), DesignSpec(100, 1, 5.0)]
)
def test_shows_the_table_itself(spec):
    design = solve(spec)
    figure = plot_design(design)
    table, bias, variance = (axes for axes in figure.axes if axes.get_label() != "<colorbar>")
    assert np.array_equal(table.images[0].get_array(), design.probabilities)
    numbers = len(table.texts)
    assert numbers == (design.probabilities.size if spec.input_levels <= 16 else 0)
    assert "bias" in bias.get_title(loc="left")
    assert variance.get_ylim()[0] == 0
    assert design.identity() in {text.get_text().split()[-1] for text in figure.texts}


def test_curves_are_the_mechanisms_own():
    figure = plot_design(solve(DesignSpec(2, 1, 1.0)))
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[2].lines}
    assert np.abs(lines["MVU (dithered to levels)"]).max() < 1e-9
    assert 0.01 < np.abs(lines["I-MVU (interpolated)"]).max() < 0.02


def test_what_is_no_design_is_refused():
    with refuses("design", "ndarray"):
        plot_design(np.eye(2))
