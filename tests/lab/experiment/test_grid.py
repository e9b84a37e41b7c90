import pytest

import quietbit
from quietbit_lab.experiment.grid import read_sweep
from refusals import refuses

TEXT = """
name = "small"
claim = "one bit is enough"
[task]
name = "digits"
[common]
cohort = 50
adjacency = "zero-out"
clip = [0.5, 1.0]
lr = 0.3
rounds = [20, 10]
seeds = [1, 2]
[reduced]
clip = 0.5
seeds = [1]
[[grid]]
label = "I-MVU"
mechanism = "imvu"
design_epsilon = [0.5, 1.0, 2.0]
reduced.design_epsilon = 1.0
[[grid]]
label = "Gaussian"
mechanism = "gaussian"
noise_multiplier = [1.0, 2.0]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def test_jobs_are_the_product_of_all_lists(file):
    sweep = read_sweep(file)
    assert (sweep.name, sweep.claim) == ("small", "one bit is enough")
    assert len(sweep.jobs) == 2 * 2 * (3 + 2)
    assert len({job.identity for job in sweep.jobs}) == len(sweep.jobs)
    first = sweep.jobs[0].setting
    assert (first.training.rounds, first.training.evaluate_at, first.plan.rng) == (
        20,
        (10, 20),
        "seeded",
    )


def test_the_reduced_grid_is_smaller_and_a_part_of_the_whole(file):
    whole, reduced = read_sweep(file), read_sweep(file, reduced=True)
    assert [
        (
            j.label,
            j.setting.plan.mechanism.design_epsilon,
            j.setting.plan.mechanism.noise_multiplier,
        )
        for j in reduced.jobs
    ] == [
        ("I-MVU", 1.0, None),
        ("Gaussian", None, 1.0),
        ("Gaussian", None, 2.0),
    ]
    assert {j.identity for j in reduced.jobs} <= {j.identity for j in whole.jobs}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("[[grid]]", "[[grids]]", "table of small.toml"),
        ("lr = 0.3", "learning_rate = 0.3", "setting"),
        ("rounds = [20, 10]", "rounds = []", "rounds"),
        (
            "design_epsilon = [0.5, 1.0, 2.0]",
            "design_epsilon = [1.0, 1.0]",
            "different jobs of small.toml",
        ),
        ("cohort = 50", "cohort = 0", "cohort"),
        ("name = ", "name ", "sweep"),
    ],
)
def test_refusals(file, old, new, name):
    file.write_text(TEXT.replace(old, new))
    with refuses(name):
        read_sweep(file)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(quietbit.QuietbitError, match="Cannot read"):
        read_sweep(tmp_path / "none.toml")
