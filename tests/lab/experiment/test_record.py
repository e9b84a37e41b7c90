import json

import pytest
from quietbit.plan.settings import Settings

import quietbit
from quietbit.simulate.loop import simulate
from quietbit_lab.experiment.record import commit_of, read_record, run_record, save_record
from unit.simulate.makers import small_problem


@pytest.fixture(scope="module")
def run():
    settings = Settings("sign", 0.05, 4, 20, 1.0, noise=2.0, seed=9, words="seeded", evaluate_every=2)
    return simulate(small_problem(), settings)


def test_a_record_says_everything_and_repeats_the_run(run, tmp_path):
    path = save_record(tmp_path / "run.json", run_record(run, {"name": "clusters"}))
    record = read_record(path)
    assert record["status"] == "finished"
    assert record["seeds"] == {"run": 9, "words": 9}
    assert record["mechanism"]["inner"]["noise_multiplier"] == 2.0
    assert record["guarantee"]["sentence"] == run.guarantee.sentence()
    assert {"quietbit", "numpy", "scipy"} <= set(record["versions"])
    again = simulate(small_problem(), Settings.from_json(record["settings"]))
    assert [p["accuracy"] for p in record["points"]] == [p.score.accuracy for p in again.points]
    assert record["uplink_bytes"] == again.points[-1].uplink_bytes


def test_without_privacy_there_is_no_epsilon():
    run = simulate(small_problem(), Settings("none", 0.1, 2, 20, 1.0))
    record = json.loads(json.dumps(run_record(run, {}), allow_nan=False))
    assert record["guarantee"] is None
    assert record["points"][-1]["epsilon_upper"] is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"format": "quietbit run", "version": 99}'])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(quietbit.QuietbitError, match=r"run\.json"):
        read_record(path)
    with pytest.raises(quietbit.QuietbitError, match="Cannot read"):
        read_record(tmp_path / "none.json")


def test_no_checkout_no_commit(tmp_path):
    assert commit_of(tmp_path) is None
