import gzip
import json
from pathlib import Path

import pytest

from federation.simulate.makers import chosen, small_problem
from quietbit._files import write_json
from quietbit.federation.simulate.loop import simulate
from quietbit_lab.experiment.grid import Job
from quietbit_lab.experiment.record import Setting, commit_of, modern, read_record, run_record
from refusals import refuses


def signs(**given):
    usual = {"noise_multiplier": 2.0, "lr": 0.05, "cohort": 20, "clip": 1.0}
    return simulate(small_problem(), *chosen(mechanism="sign", **usual, **given))


def test_a_record_says_everything_and_repeats_the_run(tmp_path):
    run = signs(seed=9, rng="seeded", rounds=4, evaluate_every=2)
    path = write_json(tmp_path / "run.json", run_record(run, {"name": "clusters"}))
    record = read_record(path)
    assert record["status"] == "finished"
    assert record["seeds"] == {"run": 9, "rng": 9}
    assert record["protects"].startswith("nobody: random bits")
    assert record["mechanism"]["inner"]["noise_multiplier"] == 2.0
    assert record["guarantee"]["sentence"] == run.guarantee.sentence()
    assert {"quietbit", "numpy", "scipy"} <= set(record["versions"])
    setting = Setting.from_json(record["settings"])
    assert setting == Setting(run.plan, run.training)
    again = simulate(small_problem(), setting.plan, setting.training)
    assert [p["accuracy"] for p in record["points"]] == [p.score.accuracy for p in again.points]
    assert record["uplink_bytes"] == again.points[-1].uplink_bytes


def test_without_privacy_there_is_no_epsilon():
    run = simulate(
        small_problem(), *chosen(mechanism="none", lr=0.1, rounds=2, cohort=20, clip=1.0)
    )
    record = json.loads(json.dumps(run_record(run, {}), allow_nan=False))
    assert record["guarantee"] is None
    assert record["protects"].startswith("nobody: the run")
    assert record["points"][-1]["epsilon_upper"] is None


def test_a_run_with_secret_bits_protects_those_of_its_guarantee():
    run = signs(rng="secure", rounds=1)
    assert run_record(run, {})["protects"] == "those whom the guarantee is about"
    assert run_record(run, {}, draws="law of the sum")["protects"].startswith("nobody")


def test_no_checkout_no_commit(tmp_path):
    assert commit_of(tmp_path) is None


RESULTS = sorted((Path(__file__).parents[3] / "experiments" / "results").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_stored_jobs_keep_their_names(path):
    """Names that were given under the words of version 1 follow from what is read of them now."""
    with gzip.open(path, "rt") as file:
        lines = [json.loads(line) for line in file][::97]
    assert lines
    for line in lines:
        record = modern(line["record"])
        setting = Setting.from_json(record["settings"])
        assert Job(setting, record["task"], line["label"]).identity == line["job"]
        assert (
            setting.to_json() | {"evaluate_at": list(setting.training.evaluate_at)}
            == record["settings"]
        )


def test_old_words_are_read_and_new_ones_stay():
    old = {
        "settings": {
            "epsilon": 1.0,
            "target_epsilon": 5.0,
            "noise": None,
            "words": "seeded",
            "honest": 3,
            "lr": 2,
        }
    }
    new = {
        "design_epsilon": 1.0,
        "epsilon": 5.0,
        "noise_multiplier": None,
        "rng": "seeded",
        "min_honest_clients": 3,
        "lr": 2,
    }
    assert modern(old)["settings"] == new
    assert modern({"settings": new})["settings"] == new
    assert modern({"status": "finished"}) == {"status": "finished"}


def test_unknown_and_missing_names_are_refused():
    with refuses("setting", "momentun"):
        chosen(mechanism="none", lr=0.1, rounds=2, clip=1.0, momentun=0.5)
    with refuses("clip"):
        Setting.from_json({"mechanism": "none"})
    with refuses("adjacency"):
        Setting.from_json({"mechanism": "none", "lr": 0.1, "rounds": 2, "clip": 1.0})
