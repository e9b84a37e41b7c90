import sys

import pytest

from quietbit.errors import InvalidParameter, MissingDependency, QuietbitError
from quietbit.plot.figure import blank_figure, plain_axes, render_figure, save_figure

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
    with pytest.raises(InvalidParameter, match="bmp"):
        save_figure(drawn, tmp_path / "f.bmp")
    with pytest.raises(InvalidParameter, match="gif"):
        render_figure(drawn, "gif")
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
    with pytest.raises(MissingDependency, match=r"\.\[plot\]"):
        blank_figure(1, 1)
