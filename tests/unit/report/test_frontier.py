import pytest

import quietbit
from quietbit.report.figure import render_figure
from quietbit.report.frontier import plot_frontier, read_runs


def result(label, epsilon, accuracy, seed=1, **settings):
    usual = {"delta": 1e-5, "adjacency": "zero-out", "unit": "client", "seed": seed}
    point = {"round": 9, "epsilon_upper": epsilon, "accuracy": accuracy}
    return {"label": label, "record": {"status": "finished", "settings": {**usual, **settings}, "points": [point]}}


def test_a_line_per_mechanism_with_its_words():
    results = [result("I-MVU", e, a, s, lr=e) for e, a in ((1.0, 0.5), (3.0, 0.8), (4.0, 0.7)) for s in (1, 2)]
    results += [result("Gaussian", 1.0, 0.6), result("exact", None, 0.9)]
    figure = plot_frontier(results, "fig2-mnist")
    axes = figure.axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(names) == ["Gaussian (1 seed)", "I-MVU (2 seeds)", "exact (no privacy)"]
    assert "zero-out" in axes.get_xlabel()
    assert "client" in axes.get_xlabel()
    assert render_figure(figure, "pdf").startswith(b"%PDF")


def test_nothing_to_draw_is_one_sentence(tmp_path):
    with pytest.raises(quietbit.InvalidParameter, match="finished"):
        plot_frontier([], "fig2-mnist")
    with pytest.raises(quietbit.QuietbitError, match="no finished runs"):
        read_runs(tmp_path)
    with pytest.raises(quietbit.QuietbitError, match="There is no folder"):
        read_runs(tmp_path / "none")
