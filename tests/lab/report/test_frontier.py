from quietbit_lab.plot.figure import save_figure
from quietbit_lab.report.plots import plot_frontier
from refusals import refuses


def result(label, epsilon, accuracy, seed=1, **settings):
    usual = {"delta": 1e-5, "adjacency": "zero-out", "unit": "client", "seed": seed}
    point = {"round": 9, "epsilon_upper": epsilon, "accuracy": accuracy}
    return {
        "label": label,
        "record": {"status": "finished", "settings": {**usual, **settings}, "points": [point]},
    }


def test_a_line_per_mechanism_with_its_words(tmp_path):
    results = [
        result("I-MVU", e, a, s, lr=e)
        for e, a in ((1.0, 0.5), (3.0, 0.8), (4.0, 0.7))
        for s in (1, 2)
    ]
    results += [result("Gaussian", 1.0, 0.6), result("exact", None, 0.9)]
    figure = plot_frontier(results, "fig2-mnist")
    axes = figure.axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(names) == ["Gaussian (1 seed)", "I-MVU (2 seeds)", "exact (no privacy)"]
    assert "zero-out" in axes.get_xlabel()
    assert "client" in axes.get_xlabel()
    assert save_figure(figure, tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_nothing_to_draw_is_one_sentence():
    with refuses("number of finished runs", 0):
        plot_frontier([], "fig2-mnist")


def test_epsilons_of_different_meaning_are_refused():
    with refuses("unit, delta and adjacency of the results"):
        plot_frontier([result("a", 1.0, 0.5), result("b", 1.0, 0.5, adjacency="replace-one")], "t")
    figure = plot_frontier([result("a", 1.0, 0.5), result("exact", None, 0.5, delta=0.0)], "t")
    assert "1e-05" in figure.axes[0].get_xlabel()  # a run without privacy has no delta to disagree
