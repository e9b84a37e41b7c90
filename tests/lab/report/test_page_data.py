import json
import statistics

import pytest

from lab.report.makers import changed, runs
from quietbit_lab.report.page_data import COLUMNS, page_data
from refusals import refuses


def rows_of(some):
    """The rows of the first comparison, by the names of their columns."""
    rows = page_data(some, "t")["comparisons"][0]["rows"]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def chosen(some):
    return [row for row in rows_of(some) if row["chosen"]]


def test_runs_that_differ_by_seed_are_one_row_with_their_spread():
    names = [label["name"] for label in page_data(runs(), "t")["labels"]]
    assert names == ["Gaussian, 32 bits", "I-MVU, 1 bit", "SignSGD, 1 bit", "without noise"]
    rows = chosen(runs())
    assert len(rows) == 10
    assert {row["seeds"] for row in rows} == {2}
    (plain,) = [row for row in rows if names[row["label"]] == "without noise"]
    reached = [run.record["points"][-1]["accuracy"] for run in runs()[-2:]]
    assert plain["accuracy"] == pytest.approx(statistics.mean(reached), abs=1e-5)
    assert plain["deviation"] == pytest.approx(statistics.stdev(reached), abs=1e-5)
    assert plain["epsilon"] is None
    private = [row for row in rows if row["epsilon"] is not None]
    assert {row["bytes"] for row in private} == {146, 2664}
    assert [row["uplink"] for row in private] == [row["bytes"] * 60 * 6 for row in private]
    assert len(rows_of(runs())) == 10 + 20  # scores along the way, for the curves


def test_an_epsilon_is_never_shown_below_the_run_s():
    found = sorted({row["epsilon"] for row in chosen(runs()) if row["epsilon"]})
    assert found == [5, 10, 20]
    for guarantee in filter(None, (run.record["guarantee"] for run in runs())):
        claimed = guarantee["epsilon_upper"]
        assert any(claimed <= shown <= claimed * 1.001 for shown in found)


def test_what_all_share_is_said_once():
    one = page_data(runs(), "title")["comparisons"][0]
    assert one["common"]["clients per round"] == 60
    assert one["common"]["clip"] == 1.0
    assert all("clip" not in settings for settings in one["settings"])
    assert {settings["step size"] for settings in one["settings"]} == {0.6, 0.3, 2.0}
    assert "seed" not in json.dumps(one["settings"])
    sentence = one["trusts"][0]["sentence"]
    assert "zero-out adjacency" in sentence
    assert "local trust" in sentence


def test_runs_that_failed_are_listed_and_never_chosen():
    broken = changed(runs()[0], status="diverged", reason="It grew.", points=[], guarantee=None)
    half = changed(runs()[1], status="interrupted", reason="Interrupted in round 5.")
    rows = [row for row in rows_of([*runs(), broken, half]) if row["state"]]
    said = {row["state"]: row["chosen"] for row in rows}
    assert said == {"diverged: It grew.": 0, "interrupted: Interrupted in round 5.": 0}


def test_runs_of_different_length_are_different_settings():
    points = [{**runs()[0].record["points"][-1], "round": 8}]
    longer = changed(runs()[0], settings={"rounds": 8, "seed": 9}, points=points)
    rows = chosen([runs()[0], longer])
    assert sorted((row["rounds"], row["seeds"]) for row in rows) == [(6, 1), (8, 1)]


def test_the_unbeaten_are_marked():
    private = [row for row in chosen(runs()) if row["label"] < 3]
    for row in private:
        others = [other for other in private if other["label"] == row["label"]]
        cheaper = [other for other in others if other["epsilon"] <= row["epsilon"]]
        beaten = any(other["accuracy"] > row["accuracy"] for other in cheaper)
        assert (row["chosen"] == 1) >= beaten
        assert row["mechanism"] >= 0 or row["chosen"] == 1


def test_what_the_server_adds_does_not_leave_a_client():
    central = [
        changed(r, guarantee={**r.record["guarantee"], "trust": "central"}) for r in runs()[:2]
    ]
    data = page_data(central, "t")
    assert data["mechanisms"] == []
    assert "central trust" in data["comparisons"][0]["trusts"][0]["sentence"]


def test_versions_commits_and_words_are_kept():
    made = page_data([changed(runs()[0], commit="abc"), runs()[1]], "t")["made"]
    assert "abc" in made["commits"]
    assert made["versions"]["numpy"]
    assert made["seeded"]


def test_nothing_to_report_is_refused():
    with refuses("number of runs", 0):
        page_data([], "t")


def test_a_run_without_a_score_is_listed_and_not_drawn():
    some = [changed(runs()[0], points=[])]
    assert "accuracy was not measured" in page_data(some, "t")["comparisons"][0]["summary"]
    (row,) = rows_of(some)
    assert (row["chosen"], row["accuracy"], row["state"].split(":")[0]) == (0, None, "not scored")
    assert row["epsilon"] is not None
