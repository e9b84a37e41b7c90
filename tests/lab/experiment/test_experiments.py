"""The shipped sweep files: every one can be read, and its grid is the paper's."""

import importlib.util
import json
from pathlib import Path

import pytest

import quietbit
from quietbit_lab.experiment.grid import read_sweep
from quietbit_lab.experiment.packed import read_results, unpack
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.task.registry import TaskSpec

FOLDER = Path(__file__).parents[3] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
# Choosing seeds, step sizes, clips, and strengths of every mechanism, counted from the paper's
# tables. One clip stands for all where gradients are longer than any; then signs have five step
# sizes, and CIFAR-10 three runs without noise.
WHOLE = {
    "fig2-mnist": 2 * 6 * 6 * (3 * 5 + 2 * 7),
    "fig2-cifar10": 6 * (2 * 5 + 2 * 7) + 5 * 5 + 3,
    "fig4-mnist": 2 * (6 * (4 * 6 + 8) + 5 * 8),
    "fig4-cifar10": 6 * (4 * 6 + 8) + 5 * 8,
    "fig5-femnist": 5 * 3 * (5 * 12 * 3 + 2 * 5 * 23 + 3 * 12),
}


KEPT = ("fig2-mnist", "fig2-cifar10", "fig4-mnist", "fig4-cifar10", "mnist-ten-epochs")


@pytest.mark.parametrize(
    "file",
    [
        # Of 12,525 jobs; its linear twin has the same form.
        pytest.param(file, marks=pytest.mark.long) if file.stem == "fig6-femnist" else file
        for file in FILES
    ],
    ids=[file.stem for file in FILES],
)
def test_a_shipped_sweep(file):
    whole, reduced = read_sweep(file), read_sweep(file, reduced=True)
    assert whole.name == file.stem
    assert whole.claim.endswith(".")
    assert len(whole.jobs) == WHOLE.get(file.stem, len(whole.jobs))
    assert len(reduced.jobs) <= 60
    TaskSpec.from_json(whole.jobs[0].task)
    assert {job.label for job in reduced.jobs} == {job.label for job in whole.jobs}
    if file.stem in KEPT:
        assert_kept_results_belong_to(whole)


def assert_kept_results_belong_to(sweep):
    """Every kept run is a job of the shipped file, or one of its settings with fewer rounds."""
    kept = read_results(FOLDER / "results" / f"{sweep.name}.jsonl.gz")
    names = sorted(set(kept[0]["record"]["settings"]) - {"rounds", "evaluate_at", "seed"})

    def words(settings):
        return json.dumps([settings[name] for name in names])

    known = {words(job.setting.to_json()) for job in sweep.jobs}
    assert len({line["job"] for line in kept}) == len(kept) > 300
    assert {words(line["record"]["settings"]) for line in kept} <= known


def test_every_figure_of_the_issue_has_a_file():
    figures = {"fig6-femnist", *WHOLE}
    assert figures <= {file.stem for file in FILES}


def script(name):
    """One of the scripts beside the files, as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept_line(seed, lr, accuracy):
    points = [{"round": 9, "accuracy": accuracy, "epsilon_upper": 2.0}]
    settings = {"clip": 1.0, "epsilon": None, "design_epsilon": 1.0, "delta": 1e-5}
    record = {"status": "finished", "settings": settings | {"seed": seed, "lr": lr}}
    record |= {"points": points, "task": {}, "device": "cpu", "draws": ""}
    return {"sweep": "s", "job": f"{seed}{lr}", "label": "I", "record": record}


def test_tables_choose_by_some_seeds_and_report_others(capsys, tmp_path):
    """The choosing seed likes a step of 0.1; the reporting ones say what it is worth."""
    steps = {0.1: (0.9, 0.5, 0.7), 0.2: (0.8, 1.0, 1.0)}
    lines = [
        kept_line(seed, lr, accuracy)
        for lr, accuracies in steps.items()
        for seed, accuracy in zip((101, 1, 2), accuracies, strict=True)
    ]
    tables, packed = script("tables"), tmp_path / "s.jsonl.gz"
    tables.pack([tables.marked(line, [101]) for line in lines], packed)
    kept = read_results(packed)
    assert [bool(line.get("chooses")) for line in kept] == [True, False, False] * 2
    tables.print_each(kept)
    tables.print_best(kept, [1.0, 3.0])
    tables.print_best(lines, [1.0, 3.0])  # no seed chooses
    said = capsys.readouterr().out
    for row in ("| I | 9 | 2.00 | 0.1 | 1 | 2 | 60.0 | 14.1 |", "| I |  | 60.0", "| I |  | 93.3"):
        assert row in said
    unpack(kept, tmp_path)
    assert finished(tmp_path) == kept
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(quietbit.QuietbitError, match="damaged"):
        read_results(packed)
