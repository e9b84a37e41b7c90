import numpy as np
import pytest

from quietbit import DesignSpec, solve
from quietbit_lab.report.bias_variance import plot_bias_variance
from refusals import refuses


def test_a_column_per_design_and_the_paper_s_claim():
    designs = [solve(DesignSpec(levels, 3, 5.0)) for levels in (2, 8)]
    figure = plot_bias_variance(designs)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == [
        "2 input levels",
        "8 input levels",
    ]
    worst = []
    for axes in figure.axes[:2]:
        line = next(line for line in axes.lines if line.get_label().startswith("I-MVU"))
        worst.append(np.abs(line.get_ydata() - line.get_xdata()).max())
    assert worst[0] > 0.1 > 0.01 > worst[1]  # "drastically to near zero"
    laplace = next(line for line in figure.axes[2].lines if line.get_label().startswith("Laplace"))
    assert laplace.get_ydata() == pytest.approx(np.full(401, 0.08))


def test_unequal_designs_have_no_common_laplace():
    with refuses("privacy of the designs", [("metric-l1", 1.0), ("metric-l1", 2.0)]):
        plot_bias_variance([solve(DesignSpec(2, 1, 1.0)), solve(DesignSpec(2, 1, 2.0))])
    with refuses("privacy of the designs", [("strict", 1.0)]):
        plot_bias_variance([solve(DesignSpec(2, 1, 1.0, "strict"))])
    with refuses("number of designs", 0):
        plot_bias_variance([])
