"""A strategy's saved report becomes a page; a damaged one is refused in one sentence."""

from __future__ import annotations

import json

import pytest

from plans import engine_plan
from quietbit.errors import QuietbitError
from quietbit.federation.record import NodeReport, RoundReport
from quietbit.federation.report import Report
from quietbit.mechanism.registry import identity_of
from quietbit.privacy.account import Account
from quietbit.privacy.guarantee import Guarantee, shown_epsilon
from quietbit.target import Adjacency, Trust, Unit
from quietbit_lab.report.page import render_page
from quietbit_lab.report.runs import read_placed_runs

SETTINGS = engine_plan("imvu", clip=0.5, epsilon=20.0, adjacency="zero-out", releases=2)
DIMENSION = 650


def saved(folder, name="run.json", plan=SETTINGS, accuracies=(0.1, 0.5, 0.75), **changes):
    mechanism = plan.mechanism_for(DIMENSION)
    price = plan.release(mechanism)
    spent = [Account(plan.target, "adaptive").spend(price, times).epsilon() for times in (1, 2)]
    counts = (50, 40, 6, 3, 1, False, 5_000, 20_000, 90_000, ())
    report = Report(
        settings=plan,
        run=2**63 + 1,
        identity=identity_of(mechanism).hex(),
        dimension=DIMENSION,
        rounds=tuple(RoundReport(k + 1, *counts, epsilon_upper=spent[k]) for k in range(2)),
        nodes=(NodeReport(7, 2, 2, 0, 0, 0, 2, spent[1]),),
        guarantee=Guarantee(spent[1], 1e-5, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL),
        scores=tuple(
            {"round": number, "accuracy": value, "loss": 1.0}
            for number, value in enumerate(accuracies)
        ),
    )
    path = report.save(folder / name)
    values = report.to_json() | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "gone"}))
    return path


def points(run):
    return [(point["round"], point["accuracy"]) for point in run.record["points"]]


def test_a_saved_flower_run_becomes_a_page(tmp_path):
    (run,) = read_placed_runs([saved(tmp_path)])
    assert run.label == "I-MVU, 1 bit"
    assert points(run) == [(1, 0.5), (2, 0.75)]
    assert run.record["points"][1]["uplink_bytes"] == 40_000
    assert run.record["bytes_per_client"] == 500
    assert (
        run.record["guarantee"]["epsilon_upper"]
        == run.record["points"][-1]["epsilon_upper"]
        <= 20.0
    )
    assert run.record["mechanism"]["kind"] == "InterpolatedMVU"
    page = render_page([run])
    assert "a federated run of 650 parameters" in page
    assert "zero-out" in page


def test_a_mechanism_that_does_not_follow_from_the_settings_is_not_drawn(tmp_path):
    (run,) = read_placed_runs([saved(tmp_path, identity="00" * 32)])
    assert run.record["mechanism"] is None
    assert "650" in render_page([run])


@pytest.mark.parametrize(
    "scores", [[], [{"round": 1, "loss": 2.0}], [{"round": 1, "accuracy": None}]]
)
def test_a_run_that_the_server_did_not_score_has_what_nodes_said_or_no_curve(tmp_path, scores):
    (run,) = read_placed_runs([saved(tmp_path, scores=scores)])
    assert run.record["points"] == []
    page = render_page([run])
    assert (
        "A model of 650 parameters was trained in 2 rounds, and its accuracy was not measured"
        in page
    )
    epsilon = shown_epsilon(run.record["guarantee"]["epsilon_upper"])
    assert f"epsilon ≤ {epsilon} at delta 1e-05, zero-out" in page
    assert "not scored: neither the server" in page
    (scored,) = read_placed_runs([saved(tmp_path, "scored.json")])
    assert "650" in render_page([run, scored])  # it is listed beside others
    estimate = {"value": 0.4, "low": 0.3, "high": 0.5, "answers": 90}
    said = [
        {"round": number, "metric": metric, "estimates": [estimate | {"value": value}]}
        for number, metric, value in (
            (0, "accuracy", 0.1),
            (1, "accuracy", 0.4),
            (2, "loss", 7.0),
            (2, "accuracy", 1.2),
        )
    ]
    (run,) = read_placed_runs([saved(tmp_path, "asked.json", scores=scores, evaluations=said)])
    assert points(run) == [(1, 0.4), (2, 1.0)]
    page = render_page([run])
    assert "is right in 100.0 % of test cases (between 30 and 50 %, 95 % of the time" in page
    assert "of 90 nodes, which are few)" in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "has version 2, and this library reads 1"),
        ({"settings": {}}, "quietbit.mechanism, quietbit.clip, quietbit.adjacency"),
        ({"rounds": [{}]}, "damaged"),
        ({"rounds": None}, "damaged"),
        ({"identity": "gone"}, "identity"),
    ],
)
def test_what_is_no_flower_run_is_refused(tmp_path, changes, says):
    with pytest.raises(QuietbitError, match=says):
        read_placed_runs([saved(tmp_path, **changes)])
