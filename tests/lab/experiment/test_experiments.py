"""The shipped sweep files: every one can be read, and its grid is the paper's."""

import importlib.util
import json
from pathlib import Path

import pytest

from quietbit_lab.experiment.grid import read_sweep
from quietbit_lab.task.registry import TaskSpec

FOLDER = Path(__file__).parents[3] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
# Seeds, step sizes, clips, and strengths of every mechanism, counted from the paper's tables.
WHOLE = {
    "fig2-mnist": 5 * 6 * 6 * (3 * 5 + 2 * 7),
    "fig2-cifar10": 5 * 6 * 6 * (3 * 5 + 2 * 7),
    "fig4-mnist": 5 * 6 * 6 * (4 * 6 + 2 * 8),
    "fig4-cifar10": 5 * 6 * 6 * (4 * 6 + 2 * 8),
    "fig5-femnist": 5 * 3 * (5 * 12 * 3 + 2 * 5 * 23 + 3 * 12),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_sweep(file):
    whole, reduced = read_sweep(file), read_sweep(file, reduced=True)
    assert whole.name == file.stem
    assert whole.claim.endswith(".")
    assert len(whole.jobs) == WHOLE.get(file.stem, len(whole.jobs))
    assert len(reduced.jobs) <= 60
    TaskSpec.from_json(whole.jobs[0].task)
    labels = {job.label for job in whole.jobs}
    assert {job.label for job in reduced.jobs} == labels


def test_every_figure_of_the_issue_has_a_file():
    assert {"fig2-mnist", "fig2-cifar10", "fig4-mnist", "fig4-cifar10", "fig5-femnist", "fig6-femnist"} <= {
        file.stem for file in FILES
    }


def script(name):
    """One of the scripts beside the files, as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_of_a_grid():
    whole = read_sweep(FOLDER / "fig2-mnist.toml")
    part = script("run_on_gpu").part_of(whole, ["MVU, 1 bit"], ["clip=1,4", "lr=0.003", "seed=2"], 1000)
    assert len(part.jobs) == 7 * 2
    assert {job.label for job in part.jobs} == {"MVU, 1 bit"}
    assert {(job.setting.plan.clip, job.setting.training.rounds, job.setting.seed) for job in part.jobs} == {
        (1.0, 1000, 2),
        (4.0, 1000, 2),
    }


def test_tables_choose_by_some_seeds_and_report_others(capsys, tmp_path):
    """The selecting seed likes a step of 0.1; the reporting ones say what it is worth."""
    lines = []
    for seed, lr, accuracy in (
        (101, 0.1, 0.9),
        (101, 0.2, 0.8),
        (1, 0.1, 0.5),
        (2, 0.1, 0.7),
        (1, 0.2, 1.0),
        (2, 0.2, 1.0),
    ):
        settings = {"seed": seed, "lr": lr, "clip": 1.0, "epsilon": None, "design_epsilon": 1.0, "delta": 1e-5}
        points = [{"round": 9, "accuracy": accuracy, "epsilon_upper": 2.0}]
        record = {
            "status": "finished",
            "settings": settings,
            "points": points,
            "task": {},
            "device": "cpu",
            "draws": "",
        }
        lines.append({"sweep": "s", "job": f"{seed}{lr}", "label": "I", "record": record})
    tables, packed = script("tables"), tmp_path / "s.jsonl.gz"
    tables.pack(lines, packed)
    assert tables.read(packed) == lines
    tables.print_selected(lines, [101])
    assert "| I | 9 | 2.00 | 0.1 | 1 | 2 | 60.0 | 14.1 |" in capsys.readouterr().out
    tables.print_best(tables.summarise(lines), [1.0, 3.0])
    assert "| I |  | 93.3" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fig2-mnist", "fig2-cifar10-part", "mnist-ten-epochs"])
def test_kept_results_belong_to_their_grid(name):
    """Every kept run is a job of the shipped file, or one of its settings with fewer rounds."""
    kept = script("tables").read(FOLDER / "results" / f"{name}.jsonl.gz")
    names = sorted(set(kept[0]["record"]["settings"]) - {"rounds", "evaluate_at"})

    def words(settings):
        return json.dumps([settings[name] for name in names])

    known = {words(job.setting.to_json()) for job in read_sweep(FOLDER / f"{name}.toml").jobs}
    assert len({line["job"] for line in kept}) == len(kept) > 800
    assert {words(line["record"]["settings"]) for line in kept} <= known
