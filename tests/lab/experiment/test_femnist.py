"""How steps of Figures 5 and 6 are chosen and reported."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit_lab.experiment.packed import read_results
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.task.dataset import Dataset, Examples, Partition

torch = pytest.importorskip("torch")
from quietbit_lab.task.module import ModuleProblem  # noqa: E402

FILE = Path(__file__).parents[3] / "experiments" / "run_femnist.py"


@pytest.fixture(scope="module")
def femnist():
    spec = importlib.util.spec_from_file_location("run_femnist", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_femnist"] = module
    spec.loader.exec_module(module)
    return module


def writers():
    """Twenty writers of 102 to 121 samples."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(20), np.arange(102, 122))
    labels = rng.integers(0, 3, owners.size)
    inputs = rng.integers(0, 100, (owners.size, 6, 6), dtype=np.uint8)
    inputs[np.arange(owners.size), labels + 1, 2] = 255
    return Dataset(
        "femnist", 3, Examples(inputs, labels), Examples(inputs[:60], labels[:60]), owners
    )


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(72, 3)
    )


def test_held_out_writers_score_and_do_not_train(femnist):
    whole = writers()
    part = femnist.held_out(whole, 10)
    assert np.unique(part.writers).size == 18
    assert part.train.count + part.test.count == whole.train.count
    seen = {image.tobytes() for image in part.test.inputs}
    assert not seen & {image.tobytes() for image in part.train.inputs}


def test_the_best_step_has_both_neighbours_tried(femnist):
    """Accuracy peaks at 0.3 on a scale of powers of two: the search ends there from anywhere."""

    def accuracy(step):
        return -abs(np.log2(step / 0.3))

    for start in (0.0025, 0.04, 2.5):
        tried = {start: accuracy(start)}
        while more := femnist.beside(tried):
            tried |= {step: accuracy(step) for step in more}
        assert femnist.best(tried) == max(tried, key=accuracy)
        assert len(tried) >= femnist.MOST_STEPS or {
            femnist.best(tried) / 2,
            femnist.best(tried) * 2,
        } <= set(tried)
    assert femnist.best({0.1: 0.5, 0.2: 0.5}) == 0.1


LABELS = ["I-MVU, 1", "I-MVU, 3", "Gaussian", "Skellam", "SignSGD", "without"]  # 8 are shipped


@pytest.mark.long
def test_choices_come_from_held_out_writers_and_reports_from_all(femnist, monkeypatch, tmp_path):
    """The full program with 239 parameters, one epsilon, two seeds and ten rounds."""
    whole, three = writers(), "I-MVU, 3 bits, 8 levels"

    class Small(femnist.Problems):
        def __call__(self, task, seed):
            dataset = femnist.held_out(whole, task["held_out"]) if "held_out" in task else whole
            split = Partition.by_owner(dataset.writers, task["least"])
            return ModuleProblem(dataset, split, network)

    monkeypatch.setattr(femnist, "Problems", Small)
    words = f"--back {tmp_path}/back.gz --epsilon 8 --seeds 1 2 --rounds 10 --labels".split()

    def run(out, *more):
        monkeypatch.setattr(sys, "argv", ["run_femnist.py", "--out", str(out), *more])
        femnist.main()
        return [finished(out / name) for name in femnist.FOLDERS]

    choice, fig5, fig6 = run(tmp_path, *words, *LABELS)
    assert {line["record"]["settings"]["seed"] for line in choice} == {femnist.CHOOSING}
    assert all(line["record"]["task"]["held_out"] == 10 for line in choice)
    assert not any("held_out" in line["record"]["task"] for line in fig5 + fig6)
    assert len(fig5) == 2 * 5  # seeds x (four mechanisms, and none)
    assert [line["label"] for line in fig6] == [three] * 2
    tried = {}
    for line in choice:
        points = tried.setdefault(line["label"], {})
        points[line["record"]["settings"]["lr"]] = line["record"]["points"][-1]["accuracy"]
    for line in fig5 + fig6:
        settings = line["record"]["settings"]
        assert settings["lr"] == femnist.best(tried[line["label"]])
        if settings["mechanism"] != "none":
            assert 7 < line["record"]["points"][-1]["epsilon_upper"] <= 8
    monkeypatch.setattr(femnist.BatchTogether, "train", None)  # nothing is left to be trained
    again = run(tmp_path / "again", *words, *LABELS)
    jobs = [[line["job"] for line in lines] for lines in again]
    assert jobs == [[line["job"] for line in lines] for lines in (choice, fig5, fig6)]
    run(tmp_path / "again", "--keep", str(tmp_path))
    kept = read_results(tmp_path / "fig6-femnist.jsonl.gz")
    assert {line["label"] for line in kept} == {*femnist.SHARED, three}
    assert len(read_results(tmp_path / "fig5-femnist.jsonl.gz")) == len(fig5)
