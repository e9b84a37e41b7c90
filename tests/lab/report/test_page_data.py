import json
import statistics

import pytest

from lab.report.makers import changed, runs, sweep
from quietbit_lab.report.page_data import COLUMNS, page_data
from refusals import refuses


def rows_of(data, place=0):
    return [dict(zip(COLUMNS, row, strict=True)) for row in data["comparisons"][place]["rows"]]


def test_runs_that_differ_by_seed_are_one_row_with_their_spread():
    data = page_data(runs(), "title")
    rows = [row for row in rows_of(data) if row["chosen"]]
    assert len(rows) == 10
    assert {row["seeds"] for row in rows} == {2}
    names = [label["name"] for label in data["labels"]]
    assert names == ["Gaussian, 32 bits", "I-MVU, 1 bit", "SignSGD, 1 bit", "without noise"]
    (plain,) = [row for row in rows if names[row["label"]] == "without noise"]
    reached = [run.record["points"][-1]["accuracy"] for run in runs()[-2:]]
    assert plain["accuracy"] == pytest.approx(statistics.mean(reached), abs=1e-5)
    assert plain["deviation"] == pytest.approx(statistics.stdev(reached), abs=1e-5)
    assert plain["epsilon"] is None
    for row in rows:
        if row["epsilon"] is not None:
            assert row["epsilon"] <= 20
            assert row["bytes"] in (146, 2664)
            assert row["uplink"] == row["bytes"] * 60 * 6
    assert (
        sum(not row["chosen"] for row in rows_of(data)) == 20
    )  # scores along the way, for the curves


def test_an_epsilon_is_never_shown_below_the_run_s():
    data = page_data(runs(), "title")
    found = sorted({row["epsilon"] for row in rows_of(data) if row["chosen"] and row["epsilon"]})
    claimed = sorted(
        run.record["guarantee"]["epsilon_upper"] for run in runs() if run.record["guarantee"]
    )
    assert found == [5, 10, 20]
    assert all(any(c <= f <= c * 1.001 for f in found) for c in claimed)


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
    rows = [row for row in rows_of(page_data([*runs(), broken, half], "t")) if row["state"]]
    assert sorted(row["state"] for row in rows) == [
        "diverged: It grew.",
        "interrupted: Interrupted in round 5.",
    ]
    assert {row["chosen"] for row in rows} == {0}


def test_the_luckier_seeds_are_not_left_alone():
    asked = [changed(run, settings={"evaluate_at": [2, 4, 6]}) for run in runs()[:2]]
    behind = changed(asked[0], status="dropped", points=asked[0].record["points"][:2])
    rows = rows_of(page_data([behind, asked[1]], "t"))
    assert sorted((row["rounds"], row["seeds"], row["chosen"] > 0) for row in rows) == [
        (2, 2, True),
        (4, 2, True),
    ]


def test_runs_of_different_length_are_different_settings():
    longer = changed(
        runs()[0],
        settings={"rounds": 8, "seed": 9},
        points=[{**runs()[0].record["points"][-1], "round": 8}],
    )
    rows = [row for row in rows_of(page_data([runs()[0], longer], "t")) if row["chosen"]]
    assert sorted((row["rounds"], row["seeds"]) for row in rows) == [(6, 1), (8, 1)]


def test_the_unbeaten_are_marked():
    rows = [row for row in rows_of(page_data(runs(), "t")) if row["chosen"]]
    for label in range(3):
        own = [row for row in rows if row["label"] == label]
        for row in own:
            beaten = any(
                o["epsilon"] <= row["epsilon"] and o["accuracy"] > row["accuracy"] for o in own
            )
            assert (row["chosen"] == 1) >= beaten
            assert row["mechanism"] >= 0 or row["chosen"] == 1


def test_what_the_server_adds_does_not_leave_a_client():
    central = [
        changed(r, guarantee={**r.record["guarantee"], "trust": "central"}) for r in runs()[:2]
    ]
    data = page_data(central, "t")
    assert data["mechanisms"] == []
    assert "central trust" in data["comparisons"][0]["trusts"][0]["sentence"]


def test_thousands_of_runs_stay_small():
    data = page_data(sweep(500, seeds=2), "t")
    assert len(json.dumps(data)) < 400_000
    assert data["made"]["runs"] == 1000


def test_versions_commits_and_words_are_kept():
    made = page_data([changed(runs()[0], commit="abc"), runs()[1]], "t")["made"]
    assert "abc" in made["commits"]
    assert made["versions"]["numpy"]
    assert made["seeded"]


def test_nothing_to_report_is_refused():
    with refuses("number of runs", 0):
        page_data([], "t")


def test_a_run_without_a_score_is_listed_and_not_drawn():
    found = page_data([changed(runs()[0], points=[])], "t")
    assert "accuracy was not measured" in found["comparisons"][0]["summary"]
    (row,) = rows_of(found)
    assert (row["chosen"], row["accuracy"], row["state"].split(":")[0]) == (0, None, "not scored")
    assert row["epsilon"] is not None
