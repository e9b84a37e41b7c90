"""Accuracy by group: the interval covers the truth, and an engine's run shows it."""

import json

import numpy as np
import pytest
from scipy import stats

from cli.kit import shell
from quietbit.federation.parts.evaluation import Evaluate, Evaluation
from quietbit_lab.experiment.groups import group_accuracies
from quietbit_lab.report.page_data import page_data
from quietbit_lab.report.runs import read_placed_runs
from refusals import refuses


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_intervals_cover_the_accuracy_of_every_group(epsilon):
    rng = np.random.default_rng(7)
    asked = Evaluation(Evaluate(epsilon, bins=4), adjacency="replace-one")
    shares = np.array([0.6, 0.3, 0.02, 0.08])
    frequencies = [asked.mechanism.frequency(share) for share in shares]
    truth = {"many": 0.6 / 0.9, "few": 0.2}
    hits = dict.fromkeys(truth, 0)
    trials = 300
    for _ in range(trials):
        named = rng.multinomial(800, frequencies / np.sum(frequencies))
        estimates = np.clip([asked.mechanism.share(count / 800) for count in named], 0.0, 1.0)
        for group in group_accuracies(asked, list(truth), list(estimates), 800):
            assert 0 <= group["low"] <= group["high"] <= 1
            hits[group["name"]] += group["low"] <= truth[group["name"]] <= group["high"]
    for count in hits.values():
        assert count >= stats.binom.ppf(1e-9, trials, 0.95)


def test_a_small_group_has_the_wider_interval_and_none_may_be_absent():
    asked = Evaluation(Evaluate(2.0, bins=4), adjacency="replace-one")
    large, small = group_accuracies(asked, ("a", "b"), (0.7, 0.2, 0.05, 0.05), 2000)
    assert (large["accuracy"], small["accuracy"]) == pytest.approx((0.7 / 0.9, 0.5))
    assert small["high"] - small["low"] > large["high"] - large["low"]
    absent = group_accuracies(asked, ("a", "b"), (0.7, 0.3, 0.0, 0.0), 2000)[1]
    assert (absent["accuracy"], absent["low"], absent["high"]) == (None, 0.0, 1.0)


def test_groups_are_two_cells_each_and_different():
    section = Evaluate(1.0, groups=["digits", " letters"])
    assert section.groups == "digits, letters"
    assert section.group_names == ("digits", "letters")
    assert Evaluate(1.0).group_names == ()
    for bad in ("", "a,,b", "a, a", 3, [1]):
        with refuses("evaluate.groups"):
            Evaluate(1.0, groups=bad)
    with refuses("evaluate.bins", 4):
        Evaluate(1.0, bins=4, groups="a, b")


@pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
def test_a_flower_run_shows_the_accuracy_of_its_groups(tmp_path, capsys):
    pytest.importorskip("flwr", reason="needs the flower extra")
    from attack.test_every_epsilon import Engine

    config = {
        "quietbit.mechanism": "gaussian",
        "quietbit.clip": 1.0,
        "quietbit.epsilon": 20.0,
        "quietbit.adjacency": "zero-out",
        "quietbit.releases": 1,
        "quietbit.evaluate.epsilon": 12.0,
        "quietbit.evaluate.groups": "digits, letters",
        "quietbit.evaluate.releases": 1,
    }
    engine = Engine(config, metric=[3.0, 1.0, 0.0, 0.0])
    engine.run(1)
    path = engine.strategy.report().save(tmp_path / "run.json")
    assert json.loads(path.read_text())["settings"]["quietbit.evaluate.groups"] == "digits, letters"
    (run,) = read_placed_runs([path])
    groups = run.record["groups"]
    assert groups["answers"] == 6
    assert [group["name"] for group in groups["groups"]] == ["digits", "letters"]
    data = page_data([run], "groups")["comparisons"][0]["groups"]
    assert data[0]["groups"] == groups["groups"]
    facts = shell(capsys, "report", path, "--out", tmp_path / "page.html", "--json").json
    assert [line["name"] for line in facts["groups"]] == ["digits", "letters"]
    assert "Accuracy by group" in (tmp_path / "page.html").read_text()
