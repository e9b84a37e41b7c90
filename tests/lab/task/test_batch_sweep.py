import json

import pytest

import quietbit
from federation.simulate.makers import setting, small_problem
from quietbit_lab.experiment.grid import Job, Sweep
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.task.batch_sweep import BATCH, CHECKPOINT, BatchTogether, run_batches


def make_problem(task, seed):
    return small_problem(samples=task.get("samples", 1))


def small_sweep(rounds=6, lrs=(0.1, 0.3), task=None, mechanism="gaussian", **more):
    strength = {
        "gaussian": {"noise_multiplier": 1.0},
        "imvu": {"design_epsilon": 1.0},
        "mvu": {"design_epsilon": 2.0},
    }[mechanism]
    jobs = [
        Job(
            setting(
                mechanism=mechanism,
                lr=lr,
                rounds=rounds,
                cohort=20,
                clip=1.0,
                seed=seed,
                rng="seeded",
                evaluate_at=(rounds,),
                **strength,
                **more,
            ),
            task or {"name": "clusters"},
            mechanism,
        )
        for seed in (1, 2)
        for lr in lrs
    ]
    return Sweep("small", "", tuple(jobs))


def together(**given):
    return BatchTogether("cpu", make_problem, **given)


def points(folder):
    return {
        line["job"]: [
            (p["round"], p["accuracy"], p["epsilon_upper"]) for p in line["record"]["points"]
        ]
        for line in finished(folder)
    }


def test_a_batch_stopped_by_the_clock_continues_where_it_was(tmp_path, monkeypatch):
    """Stopped twice in mid-training: the results are those of an uninterrupted sweep."""
    sweep = small_sweep(rounds=80)
    run_batches(sweep, tmp_path / "whole", together())
    ran = [run_batches(sweep, tmp_path / "part", together(), minutes=1e-9, resume=True)]
    assert ran == [0]
    assert not (tmp_path / "part" / CHECKPOINT).exists()  # nothing was begun
    noted = []
    for wanted in (25, 50):
        clock = iter([0.0, 0.0, 0.0, *[1000.0] * 9])
        monkeypatch.setattr(
            "quietbit_lab.task.batch_sweep.time.monotonic", lambda clock=clock: next(clock)
        )
        runner = together(note=noted.append)
        assert run_batches(sweep, tmp_path / "part", runner, minutes=1.0, resume=True) == 0
        assert (tmp_path / "part" / CHECKPOINT).exists()
        assert f"at round {wanted}" in noted[-1]
        monkeypatch.undo()
    assert run_batches(sweep, tmp_path / "part", together(note=noted.append), resume=True) == 4
    assert any("continuing 2 runs at round 50" in words for words in noted)
    assert points(tmp_path / "part") == points(tmp_path / "whole")
    assert not (tmp_path / "part" / BATCH).exists()


def test_a_stale_checkpoint_is_not_continued(tmp_path):
    sweep = small_sweep()
    tmp_path.joinpath(BATCH).write_text(json.dumps({"jobs": ["somebody else's"]}))
    tmp_path.joinpath(CHECKPOINT).write_bytes(b"")
    with pytest.raises(quietbit.QuietbitError, match="damaged"):
        run_batches(sweep, tmp_path, together())
    tmp_path.joinpath(CHECKPOINT).unlink()
    assert run_batches(sweep, tmp_path, together()) == 4


def test_jobs_that_gain_nothing_go_one_by_one(tmp_path):
    grouped = small_sweep(task={"name": "clusters", "samples": 3})
    assert run_batches(grouped, tmp_path / "grouped", together()) == 4
    records = [line["record"] for line in finished(tmp_path / "grouped")]
    assert {(record["draws"], record["batch"]) for record in records} == {("every client", None)}
    drawn_again = small_sweep(mechanism="mvu")  # in so few dimensions a dither may be drawn twice
    assert run_batches(drawn_again, tmp_path / "mvu", together()) == 4
    records = [line["record"] for line in finished(tmp_path / "mvu")]
    assert {(record["draws"], record["batch"]) for record in records} == {("every client", None)}
