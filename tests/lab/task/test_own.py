"""Problems of one's own: from the command line to the report, and what a file may not do."""

import json

import numpy as np
import pytest

import quietbit
from quietbit.cli.main import main
from quietbit_lab.task.own import check_named, is_own, own_problem
from quietbit_lab.task.registry import TaskSpec
from refusals import refuses

MODULE = '''
import numpy as np
from quietbit.federation.simulate import LocalPlan, Score


class Mean:
    """Clients hold points; the parameters follow their mean."""

    name, dimension = "points", 3

    def __init__(self, seed):
        self.points = np.random.default_rng(seed).normal(2, 0.1, (40, 3)).astype(np.float32)
        self.sizes = np.ones(40, dtype=np.int64)

    def initial(self, seed):
        return np.zeros(3, dtype=np.float32)

    def updates(self, parameters, clients, plan: LocalPlan, out):
        out[:] = parameters - self.points[clients]

    def evaluate(self, parameters):
        far = float(np.linalg.norm(parameters - 2))
        return Score(max(0.0, 1 - far), far)


def points(seed):
    return Mean(seed)


def wrong(seed):
    return {"seed": seed}


def broken(seed):
    raise RuntimeError("no data here")


number = 3
'''
SWEEP = """
name = "own"
[task]
name = "{task}"
[common]
adjacency = "zero-out"
clip = 4.0
cohort = 40
rounds = [3]
lr = 0.3
[[grid]]
label = "plain"
mechanism = "none"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a new name in the working folder."""
    name = f"own_task_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_names():
    assert is_own("a.b:c")
    assert not any(
        is_own(word)
        for word in ("digits", "a:", ":b", "a:b:c", "a b:c", "a..b:c", "../a:b", "a:b.c")
    )


def test_a_problem_of_ones_own_is_trained_and_reported(module, tmp_path, capsys):
    words = [
        "--mechanism",
        "none",
        "--clip",
        "4",
        "--lr",
        "0.5",
        "--rounds",
        "8",
        "--cohort",
        "40",
        "--seed",
        "1",
    ]
    assert not main(["train", "--task", f"{module}:points", *words, "--out", "run.json", "--json"])
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["task"]["name"] == f"{module}:points"
    assert found["points"][-1]["accuracy"] > 0.6  # three coordinates walked from 0 to 2
    assert not main(["report", "run.json", "--out", "page.html"])
    assert f"{module}:points" in (tmp_path / "page.html").read_text()
    capsys.readouterr()


def test_a_record_alone_makes_no_code_run(module, tmp_path, capsys):
    words = ["--mechanism", "none", "--clip", "4", "--rounds", "1", "--cohort", "40", "--seed", "1"]
    assert not main(["train", "--task", f"{module}:points", *words, "--out", "run.json", "--json"])
    (tmp_path / f"{module}.py").write_text("raise SystemExit('ran')")
    assert main(["train", "--repeat", "run.json"]) != 0
    assert "named on the command line" in capsys.readouterr().err
    with pytest.raises(quietbit.InvalidParameter):
        check_named(f"{module}:points", "other:points")
    check_named(f"{module}:points", f"{module}:points")
    check_named("digits", None)


def test_a_sweep_of_ones_own(module, tmp_path, capsys):
    (tmp_path / "own.toml").write_text(SWEEP.format(task=f"{module}:points"))
    assert main(["sweep", "own.toml", "--out", "runs"]) != 0
    assert "named on the command line" in capsys.readouterr().err
    (tmp_path / "own.toml").write_text(SWEEP.format(task="digits"))
    assert not main(["sweep", "own.toml", "--out", "runs", "--task", f"{module}:points", "--json"])
    line = json.loads((tmp_path / "runs" / "results.jsonl").read_text())
    assert line["record"]["task"] == {"name": f"{module}:points"}
    capsys.readouterr()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("wrong", "Problem"),
        ("number", "function"),
        ("absent", "function"),
        ("broken", "no data here"),
    ],
)
def test_what_is_no_problem_is_refused_in_one_sentence(module, function, said):
    with pytest.raises(quietbit.QuietbitError, match=said):
        own_problem(f"{module}:{function}", 0)


def test_a_module_that_is_not_there_is_said():
    with refuses("task", "no_such_module_of_ours:make"):
        own_problem("no_such_module_of_ours:make", 0)


def test_an_own_task_takes_no_other_word():
    assert TaskSpec("a:b").to_json()["model"] == ""
    with pytest.raises(quietbit.InvalidParameter):
        TaskSpec("a:b", model="linear")


def test_the_working_folder_hides_nothing_installed(module, tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('hidden')")
    assert own_problem(f"{module}:points", 0).dimension == 3
    assert np.__file__ != str(tmp_path / "numpy.py")
