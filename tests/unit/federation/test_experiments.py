"""The shipped sweep files: every one can be read, and its grid is the paper's."""

from pathlib import Path

import pytest

from quietbit.federation.grid import read_sweep
from quietbit.task.registry import TaskSpec

FOLDER = Path(__file__).parents[3] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
# Seeds, step sizes, clips, and strengths of every mechanism, counted from the paper's tables.
WHOLE = {
    "fig2-mnist": 5 * 6 * 6 * (3 * 5 + 2 * 7),
    "fig2-cifar10": 5 * 6 * 6 * (3 * 5 + 2 * 7),
    "fig4-mnist": 5 * 6 * 6 * (4 * 6 + 2 * 8),
    "fig4-cifar10": 5 * 6 * 6 * (4 * 6 + 2 * 8),
    "fig5-femnist": 5 * 3 * (5 * 12 * 3 + 5 * 23 + 3 * 12),
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
