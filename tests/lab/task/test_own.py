"""Problems of one's own: from the command line to the report, and what a file may not do."""

import json

import numpy as np
import pytest

import quietbit
from cli.kit import assert_refused, shell
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
    others = ["digits", "a:", ":b", "a:b:c", "a b:c", "a..b:c", "../a:b", "a:b.c"]
    assert [word for word in others if is_own(word)] == []


TRAIN = "train --mechanism none --clip 4 --lr 0.5 --cohort 40 --seed 1 --out run.json --json"


def test_a_problem_of_ones_own_is_trained_and_reported(module, tmp_path, capsys):
    task = f"{module}:points"
    found = shell(capsys, TRAIN, "--task", task, "--rounds", 8).json
    assert found["task"]["name"] == task
    assert found["points"][-1]["accuracy"] > 0.6  # three coordinates walked from 0 to 2
    assert shell(capsys, "report run.json --out page.html").code == 0
    assert task in (tmp_path / "page.html").read_text()


def test_a_record_alone_makes_no_code_run(module, tmp_path, capsys):
    task = f"{module}:points"
    assert shell(capsys, TRAIN, "--task", task, "--rounds", 1).code == 0
    (tmp_path / f"{module}.py").write_text("raise SystemExit('ran')")
    assert_refused(shell(capsys, "train --repeat run.json"), "named on the command line")
    with pytest.raises(quietbit.InvalidParameter):
        check_named(task, "other:points")
    check_named(task, task)
    check_named("digits", None)


def test_a_sweep_of_ones_own(module, tmp_path, capsys):
    task, sweep = f"{module}:points", "sweep own.toml --out runs"
    (tmp_path / "own.toml").write_text(SWEEP.format(task=task))
    assert_refused(shell(capsys, sweep), "named on the command line")
    (tmp_path / "own.toml").write_text(SWEEP.format(task="digits"))
    assert shell(capsys, sweep, "--task", task).code == 0
    line = json.loads((tmp_path / "runs" / "results.jsonl").read_text())
    assert line["record"]["task"] == {"name": task}


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


def test_a_module_that_is_not_there_or_a_model_of_it_is_refused():
    with refuses("task", "no_such_module_of_ours:make"):
        own_problem("no_such_module_of_ours:make", 0)
    assert TaskSpec("a:b").to_json()["model"] == ""
    with pytest.raises(quietbit.InvalidParameter):
        TaskSpec("a:b", model="linear")


def test_the_working_folder_hides_nothing_installed(module, tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('hidden')")
    assert own_problem(f"{module}:points", 0).dimension == 3
    assert np.__file__ != str(tmp_path / "numpy.py")
