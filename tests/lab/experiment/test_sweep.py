import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quietbit
from federation.simulate.makers import setting, small_problem
from quietbit_lab.experiment.grid import Job, Sweep
from quietbit_lab.experiment.lines import read_lines
from quietbit_lab.experiment.sweep import RESULTS, finished, run_sweep


def make_problem(task, seed):
    return small_problem()


def small_sweep(count=4, rounds=6):
    jobs = [
        Job(
            setting(
                mechanism="imvu",
                lr=0.5,
                rounds=rounds,
                cohort=20,
                clip=1.0,
                design_epsilon=1.0,
                seed=k,
                rng="seeded",
                evaluate_at=(rounds // 2, rounds),
            ),
            {"name": "clusters"},
            "I-MVU",
        )
        for k in range(count)
    ]
    return Sweep("small", "", tuple(jobs))


def figures(folder):
    """Every job's points: round, accuracy and epsilon."""
    return {
        line["job"]: [
            (p["round"], p["accuracy"], p["epsilon_upper"], p["uplink_bytes"])
            for p in line["record"]["points"]
        ]
        for line in finished(folder)
    }


def test_nested_rounds_are_those_of_shorter_runs(tmp_path):
    for name, rounds in (("long", 6), ("short", 3)):
        run_sweep(small_sweep(1, rounds), tmp_path / name, make_problem)
    (long,), (short,) = (figures(tmp_path / name).values() for name in ("long", "short"))
    assert long[0] == short[-1]
    assert long[0][0] == 3


SCRIPT = """
import sys
from pathlib import Path
from lab.experiment.test_sweep import make_problem, small_sweep
from quietbit_lab.experiment.sweep import run_sweep
run_sweep(small_sweep(4, 60), Path(sys.argv[1]), make_problem, resume=True)
"""


def written(path):
    return path.read_bytes() if path.exists() else b""


def test_a_killed_sweep_is_resumed_with_nothing_lost_or_run_twice(tmp_path):
    """kill -9 in the middle of a job; what was finished stays byte for byte."""
    results, sweep = tmp_path / RESULTS, small_sweep(4, 60)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path})
    while process.poll() is None and b"\n" not in written(results):
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept, _, _ = written(results).rpartition(b"\n")
    assert kept
    with open(results, "ab") as file:
        file.write(b'{"job": "torn')
    run_sweep(sweep, tmp_path, make_problem, resume=True)
    assert results.read_bytes().startswith(kept)
    assert [line["job"] for line in read_lines(results)] == [job.identity for job in sweep.jobs]


def test_a_job_that_diverges_is_a_result_too(tmp_path):
    steep = setting(
        mechanism="imvu", lr=1e30, rounds=5, cohort=20, clip=1.0, design_epsilon=1.0, rng="seeded"
    )
    job = Job(steep, {"name": "clusters"}, "I-MVU")
    run_sweep(Sweep("small", "", (job,)), tmp_path, make_problem)
    assert finished(tmp_path)[0]["record"]["status"] == "diverged"


def test_foreign_lines_are_refused(tmp_path):
    (tmp_path / RESULTS).write_text(json.dumps({"other": 1}) + "\n")
    with pytest.raises(quietbit.QuietbitError, match="not a file of results"):
        finished(tmp_path)


@pytest.mark.slow
def test_workers_give_the_same_results(tmp_path):
    run_sweep(small_sweep(2), tmp_path / "one", make_problem)
    run_sweep(small_sweep(2), tmp_path / "two", make_problem, workers=2)
    assert figures(tmp_path / "one") == figures(tmp_path / "two")
