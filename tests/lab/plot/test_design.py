import numpy as np
import pytest

from quietbit import DesignSpec, solve
from quietbit_lab.plot.design import _short, _ticks, moments, plot_design
from refusals import refuses

X = np.linspace(0, 1, 21)


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


def test_numbers_and_ticks_stay_short():
    assert [_short(p) for p in (0.67, 0.0995, 0.082, 0.001, 3e-5, 4.2e-18)] == [
        ".67",
        ".10",
        ".082",
        ".001",
        "3e-5",
        "4e-18",
    ]
    assert _ticks(4) == [0, 1, 2, 3]
    assert len(_ticks(300)) == 9
    assert _ticks(300)[-1] == 299


@pytest.fixture(scope="module")
def design():
    return solve(DesignSpec(8, 2, 3.0))


def test_dithering_has_no_bias_and_the_table_s_variance(design):
    found = moments(design, design.spec.levels)["mvu"]
    table, alphabet = design.probabilities, design.alphabet
    assert np.abs(found.mean - design.spec.levels).max() < 1e-9
    assert found.variance == pytest.approx(table @ alphabet**2 - (table @ alphabet) ** 2)
    assert np.abs(moments(design, X)["mvu"].mean - X).max() < 1e-9


def test_both_mechanisms_agree_at_the_levels(design):
    dithered, interpolated = moments(design, design.spec.levels).values()
    assert interpolated.mean == pytest.approx(dithered.mean, abs=1e-12)
    assert interpolated.variance == pytest.approx(dithered.variance)


def test_one_bit_interpolation_is_a_logistic_curve():
    found = moments(solve(DesignSpec(2, 1, 1.0)), X)["imvu"]
    z = 0.5 / np.tanh(0.5)
    assert found.mean == pytest.approx(0.5 + z * np.tanh((2 * X - 1) / 2))
