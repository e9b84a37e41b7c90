import pytest

from lab.report.makers import changed, runs
from quietbit_lab.report.runs import best_curves, comparable, settings_within
from refusals import refuses


def test_a_target_leaves_what_it_covers_and_runs_without_privacy():
    kept = settings_within(runs(), 10.0)
    assert len(kept) == 3 * 2 + 1
    assert all(p.epsilon_upper <= 10 for p, run in kept if run.mechanism != "none")
    assert len(settings_within(runs(), None)) == 10
    assert {p.seeds for p, _ in kept} == {2}
    assert [run.mechanism for _, run in settings_within(runs(), 0.1)] == ["none"]


def test_the_best_setting_s_curve_is_its_mean_over_seeds():
    curves = best_curves(runs(), 20.0)
    assert sorted(curves) == [
        "Gaussian, 32 bits",
        "I-MVU, 1 bit",
        "SignSGD, 1 bit",
        "without noise",
    ]
    assert [count for count, _ in curves["I-MVU, 1 bit"]] == [2, 4, 6]
    plain = [run.record["points"] for run in runs()[-2:]]
    assert curves["without noise"][0] == (
        2,
        pytest.approx(sum(points[0]["accuracy"] for points in plain) / 2),
    )


def test_only_what_means_the_same_makes_one_figure():
    assert len(comparable([*runs(), changed(runs()[0], status="interrupted")])) == 20
    with refuses("runs of one figure"):
        comparable([runs()[0], changed(runs()[1], task={"name": "mnist"})])
    with refuses("number of finished runs", 0):
        comparable([changed(runs()[0], status="diverged")])
