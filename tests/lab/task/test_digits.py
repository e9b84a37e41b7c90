import numpy as np
import pytest

from federation.simulate.makers import chosen
from quietbit.federation.simulate.loop import simulate
from quietbit_lab.task.images import DIGITS_FILE
from quietbit_lab.task.registry import TaskSpec, build_task


def test_the_file_has_the_digits_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    inputs, labels = datasets.load_digits(return_X_y=True)
    ours = np.loadtxt(DIGITS_FILE, delimiter=",")
    assert np.array_equal(ours[:, :-1], inputs)
    assert np.array_equal(ours[:, -1], labels)


def test_digits_are_learnt_privately():
    problem = build_task(TaskSpec("digits"))
    assert problem.dimension == 650
    assert problem.sizes.size == 1437
    setup = chosen(
        mechanism="imvu",
        lr=0.5,
        rounds=8,
        cohort=700,
        clip=2.0,
        design_epsilon=2.0,
        seed=1,
        rng="seeded",
    )
    run = simulate(problem, *setup)
    assert run.points[-1].score.accuracy > 0.6
    assert np.isfinite(run.guarantee.epsilon_upper)


def test_clients_of_many_examples():
    problem = build_task(TaskSpec("digits", samples=20), seed=3)
    assert problem.sizes.tolist()[:-1] == [20] * 70
    assert problem.sizes.sum() == 1437
