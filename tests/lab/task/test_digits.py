import numpy as np
from quietbit.plan.settings import Settings

from quietbit.simulate.loop import simulate
from quietbit_lab.task.registry import TaskSpec, build_task


def test_digits_are_learnt_privately():
    problem = build_task(TaskSpec("digits"))
    assert problem.dimension == 650
    assert problem.sizes.size == 1437
    settings = Settings("imvu", 0.3, 30, 700, 2.0, epsilon=2.0, seed=1, words="seeded")
    run = simulate(problem, settings)
    assert run.points[-1].score.accuracy > 0.6
    assert np.isfinite(run.guarantee.epsilon_upper)


def test_clients_of_many_examples():
    problem = build_task(TaskSpec("digits", samples=20), seed=3)
    assert problem.sizes.tolist()[:-1] == [20] * 70
    assert problem.sizes.sum() == 1437
