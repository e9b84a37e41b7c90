import numpy as np
import pytest

from federation.simulate.makers import small_problem
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.mechanism.ball import Ball, Norm


def gradient(problem, parameters, example):
    """The gradient of one example's cross-entropy by central differences, in double precision."""
    inputs = problem.dataset.train.inputs[example].astype(np.float64)
    label, classes = problem.dataset.train.labels[example], problem.dataset.classes

    def loss(w):
        scores = (
            w[: classes * inputs.size].reshape(classes, -1) @ inputs + w[classes * inputs.size :]
        )
        return np.log(np.exp(scores).sum()) - scores[label]

    w = parameters.astype(np.float64)
    steps = np.eye(w.size) * 1e-6
    return np.array([(loss(w + step) - loss(w - step)) / 2e-6 for step in steps])


@pytest.fixture
def parameters():
    return (np.random.default_rng(0).standard_normal(39) * 0.3).astype(np.float32)


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_outer_products_are_clipped_gradients(parameters, norm, clip):
    problem = small_problem()
    rows = np.zeros((10, 40), dtype=np.float32)
    problem.updates(parameters, np.arange(10), LocalPlan(norm, clip), rows[:, :39])
    ball = Ball(norm, 39)
    for example, row in enumerate(rows):
        exact = gradient(problem, parameters, example)
        wanted = exact * min(1.0, clip / np.linalg.norm(exact, norm.order))
        np.testing.assert_allclose(row[:39], wanted, atol=1e-5)
        assert ball.contains(row[:39], clip)
        assert row[39] == 0


def test_several_local_steps(parameters):
    problem = small_problem(samples=5)
    out = np.zeros((1, 39), dtype=np.float32)
    problem.updates(parameters, np.array([1]), LocalPlan(Norm.L2, 1e6, steps=3, rate=0.2), out)
    w = parameters.astype(np.float64)
    for _ in range(3):
        each = [gradient(problem, w.astype(np.float32), e) for e in problem.partition.of(1)]
        w = w - 0.2 * np.mean(each, axis=0)
    np.testing.assert_allclose(out[0], (parameters - w) / 0.2, atol=2e-4)


def test_score_by_hand(parameters):
    problem = small_problem()
    score = problem.evaluate(np.zeros(39, dtype=np.float32))
    assert score.loss == pytest.approx(np.log(3))
    test = problem.dataset.test
    scores = test.inputs @ parameters[:36].reshape(3, 12).T + parameters[36:]
    assert problem.evaluate(parameters).accuracy == pytest.approx(
        (scores.argmax(axis=1) == test.labels).mean()
    )
