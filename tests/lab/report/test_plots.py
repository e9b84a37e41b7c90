"""Pictures of runs: a line or a point per mechanism, in its words; what cannot be drawn is refused."""

import pytest

from lab.report.makers import runs
from quietbit_lab.plot.figure import MECHANISMS, save_figure
from quietbit_lab.report.plots import plot_frontier, plot_training, plot_uplink, shown_size
from quietbit_lab.report.runs import settings_within
from refusals import refuses


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def result(label, epsilon, accuracy, seed=1, **settings):
    usual = {"delta": 1e-5, "adjacency": "zero-out", "unit": "client", "seed": seed}
    point = {"round": 9, "epsilon_upper": epsilon, "accuracy": accuracy}
    record = {"status": "finished", "settings": usual | settings, "points": [point]}
    return {"label": label, "record": record}


def test_a_frontier_has_a_line_per_mechanism_with_its_words(tmp_path):
    reached = {1.0: 0.5, 3.0: 0.8, 4.0: 0.7}
    results = [result("I-MVU", e, a, seed, lr=e) for e, a in reached.items() for seed in (1, 2)]
    results += [result("Gaussian", 1.0, 0.6), result("exact", None, 0.9, delta=0.0)]
    figure = plot_frontier(results, "fig2-mnist")
    names = ["Gaussian (1 seed)", "I-MVU (2 seeds)", "exact (no privacy)"]
    assert sorted(legend(figure)) == names
    said = figure.axes[0].get_xlabel()
    # a run without privacy has no delta to disagree
    assert [word for word in ("zero-out", "client", "1e-05") if word not in said] == []
    assert save_figure(figure, tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_bytes_have_a_point_per_mechanism(tmp_path):
    found = [
        (point, run.record["bytes_per_client"]) for point, run in settings_within(runs(), 20.0)
    ]
    figure = plot_uplink(found, "title")
    names = ["Gaussian, 32 bits", "I-MVU, 1 bit", "SignSGD, 1 bit", "without noise"]
    assert legend(figure) == names
    assert save_figure(figure, tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")


def test_sizes_for_people():
    sizes = {0: "", 100: "100 B", 2000: "2 kB", 5e6: "5 MB", 1e13: "10000 GB"}
    assert [shown_size(value) for value in sizes] == list(sizes.values())


LOOKS = {"a": "imvu", "b": "gaussian"}


def test_every_training_is_named_with_its_last_accuracy_in_its_colour():
    curves = {"a": [(1, 0.1), (10, 0.5)], "b": [(1, 0.2), (10, 0.52)]}
    (axes,) = plot_training(curves, "title", LOOKS).axes
    assert [text.get_text() for text in axes.texts] == ["a  50.0 %", "b  52.0 %"]
    heights = [text.get_position()[1] for text in axes.texts]
    assert heights[1] - heights[0] >= 4.5  # labels of close runs do not overlap
    colours = {line.get_color() for line in axes.lines}
    assert {MECHANISMS[look].light for look in LOOKS.values()} <= colours


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("number of finished runs", lambda: plot_frontier([], "t")),
        ("number of settings within the target", lambda: plot_uplink([], "t")),
        ("curves", lambda: plot_training({}, "t", LOOKS)),
        ("curves", lambda: plot_training({"a": []}, "t", LOOKS)),
        (
            "unit, delta and adjacency of the results",
            lambda: plot_frontier(
                [result("a", 1.0, 0.5), result("b", 1.0, 0.5, adjacency="replace-one")], "t"
            ),
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, draw):
    with refuses(name):
        draw()
