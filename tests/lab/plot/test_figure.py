import sys

import numpy as np
import pytest

from quietbit.errors import MissingDependency, QuietbitError
from quietbit_lab.plot.figure import (
    MECHANISMS,
    OTHERS,
    blank_figure,
    looks,
    plain_axes,
    save_figure,
)
from refusals import refuses

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def drawn():
    figure = blank_figure(2, 2)
    plain_axes(figure.subplots(), "title", "x", "y").plot([0, 1], [0, 1])
    return figure


@pytest.mark.parametrize("form", STARTS)
def test_formats(drawn, tmp_path, form):
    path = save_figure(drawn, tmp_path / f"f.{form.upper()}")
    assert path.read_bytes().startswith(STARTS[form])
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_refusals_write_nothing(drawn, tmp_path):
    with refuses("end of the figure's file name", "f.bmp"):
        save_figure(drawn, tmp_path / "f.bmp")
    with pytest.raises(QuietbitError, match="Cannot write"):
        save_figure(drawn, tmp_path / "no" / "f.png")
    (tmp_path / "f.png").mkdir()
    with pytest.raises(QuietbitError, match="Cannot write"):
        save_figure(drawn, tmp_path / "f.png")
    assert [entry.name for entry in tmp_path.iterdir()] == ["f.png"]


def test_pyplot_is_never_loaded(drawn, tmp_path):
    save_figure(drawn, tmp_path / "f.png")
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match="packages/lab"):
        blank_figure(1, 1)


def contrast(a, b):
    """The ratio of relative luminances, as in WCAG 2.1."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        light = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return np.dot((0.2126, 0.7152, 0.0722), light)

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


ALIKE = [look for name in MECHANISMS for look in looks([name] * 4)]


@pytest.mark.parametrize("look", [*MECHANISMS.values(), *OTHERS, *ALIKE])
def test_colours_are_seen_on_their_background(look):
    assert contrast(look.light, "#ffffff") >= 3
    assert contrast(look.dark, "#191d26") >= 3


def test_a_mechanism_keeps_its_look_and_a_second_run_of_it_differs():
    one, other, again, stranger, second = looks(["imvu", "gaussian", "imvu", "new", "newer"])
    assert one == MECHANISMS["imvu"] == looks(["gaussian", "imvu"])[1]
    assert other.marker != one.marker
    assert (again.light, again.dash) != (one.light, one.dash)
    assert stranger != second
    assert looks([]) == []
    assert one.line == {"color": one.light, "linestyle": "solid", "marker": "o"}


@pytest.mark.parametrize("name", MECHANISMS)
def test_four_runs_of_one_mechanism_have_four_colours(name):
    four = looks([name] * 4)
    assert len({look.light for look in four}) == len({look.dark for look in four}) == 4
