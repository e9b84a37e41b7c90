import json
import os
import signal
import subprocess
import sys
import time

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


def test_every_job_once_and_resumed_where_it_stopped(tmp_path):
    sweep, seen = small_sweep(), []
    part = Sweep("small", "", sweep.jobs[:2])
    assert run_sweep(part, tmp_path, make_problem) == 2
    with pytest.raises(quietbit.QuietbitError, match="--resume"):
        run_sweep(sweep, tmp_path, make_problem)
    ran = run_sweep(
        sweep, tmp_path, make_problem, resume=True, on_result=lambda *told: seen.append(told[:2])
    )
    assert ran == 2
    assert seen == [(3, 4), (4, 4)]
    assert run_sweep(sweep, tmp_path, make_problem, resume=True) == 0
    lines = read_lines(tmp_path / RESULTS)
    assert [line["job"] for line in lines] == [job.identity for job in sweep.jobs]
    assert [p["round"] for p in lines[0]["record"]["points"]] == [3, 6]


def test_nested_rounds_are_those_of_shorter_runs(tmp_path):
    run_sweep(small_sweep(1, 6), tmp_path / "long", make_problem)
    run_sweep(small_sweep(1, 3), tmp_path / "short", make_problem)
    long, short = (finished(tmp_path / name)[0]["record"]["points"] for name in ("long", "short"))
    assert long[0]["round"] == short[-1]["round"] == 3
    for key in ("accuracy", "epsilon_upper", "uplink_bytes"):
        assert long[0][key] == short[-1][key]


def test_a_killed_sweep_is_resumed_with_nothing_lost_or_run_twice(tmp_path):
    """kill -9 in the middle of a job, twice; what was finished stays byte for byte."""
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from lab.experiment.test_sweep import make_problem, small_sweep;"
        "from quietbit_lab.experiment.sweep import run_sweep;"
        "run_sweep(small_sweep(5, 60), Path(sys.argv[1]), make_problem, resume=True)"
    )
    tests = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    results, kept = tmp_path / RESULTS, b""
    for wanted in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), tests])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if results.exists() and results.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert results.read_bytes().startswith(kept)
        kept = results.read_bytes()[: results.read_bytes().rfind(b"\n") + 1]
    with open(results, "ab") as file:
        file.write(b'{"job": "torn')
    sweep = small_sweep(5, 60)
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
def test_workers_give_the_same_results(tmp_path, monkeypatch):
    tests = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    monkeypatch.setenv("PYTHONPATH", tests)
    run_sweep(small_sweep(3), tmp_path / "one", make_problem)
    script = (
        "import sys; from pathlib import Path;"
        "from lab.experiment.test_sweep import make_problem, small_sweep;"
        "from quietbit_lab.experiment.sweep import run_sweep;"
        "run_sweep(small_sweep(3), Path(sys.argv[1]), make_problem, workers=2)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "two")], check=True, timeout=120)

    def points(name):
        found = {line["job"]: line["record"]["points"] for line in finished(tmp_path / name)}
        return {
            job: [(p["round"], p["accuracy"], p["epsilon_upper"]) for p in line]
            for job, line in found.items()
        }

    assert points("one") == points("two")
