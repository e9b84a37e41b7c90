import math

import numpy as np
import pytest

from quietbit.design.profile import Profile
from quietbit.target import Adjacency
from quietbit_lab.plot.figure import save_figure
from quietbit_lab.plot.profile import plot_profile
from refusals import refuses

PURE = Profile.from_weights([0.3975], [1.0, math.e])


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_three_panels_and_the_promise(adjacency, tmp_path):
    figure = plot_profile(PURE, adjacency, 12, 1e-5)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "profile h",
        "density of what is sent",
        "delta at every epsilon",
    ]
    assert "12 releases" in figure.get_suptitle()
    assert adjacency.value in figure.get_suptitle()
    labels = figure.axes[2].get_legend_handles_labels()[1]
    assert labels[:2] == ["one release", "all 12 releases"]
    assert save_figure(figure, tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_delta_of_one_pure_release_ends_at_its_epsilon():
    axes = plot_profile(PURE, Adjacency.REPLACE_ONE).axes[2]
    assert axes.get_legend_handles_labels()[1] == [
        "one release",
        "epsilon 1.001 at delta 0",
    ]  # rounded up
    epsilons, deltas = axes.lines[0].get_data()
    ((p, q),) = PURE.pairs("replace-one")
    assert deltas == pytest.approx(np.maximum(p[-1] - np.exp(epsilons) * q[-1], 0.0), abs=1e-9)
    assert epsilons[-1] == pytest.approx(1.0)
    assert deltas[-1] < 1e-12


def test_the_line_of_delta_is_never_below_it():
    """Between its points the line stays where it was, straight on a logarithmic axis."""
    line = plot_profile(PURE, Adjacency.REPLACE_ONE).axes[2].lines[0]
    assert line.get_drawstyle() == "steps-post"
    (epsilons, deltas), ((p, q),) = line.get_data(), PURE.pairs("replace-one")
    between = np.linspace(0.0, 0.9999, 777)
    shown = deltas[np.searchsorted(epsilons, between, side="right") - 1]
    exact = p[-1] - np.exp(between) * q[-1]
    assert (shown >= exact - 1e-12).all()
    assert (shown <= exact + 0.01).all()


def test_a_profile_without_pure_privacy_is_drawn_too():
    figure = plot_profile(
        Profile.from_weights([0.0, 1.0], [0.0, 1.0, 2.0]), Adjacency.ZERO_OUT, 1, 1e-3
    )
    assert "Infinity" in figure.get_suptitle()


def test_what_is_no_profile_is_refused():
    with refuses("profile"):
        plot_profile(None, Adjacency.ZERO_OUT)
