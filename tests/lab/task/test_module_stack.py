"""Networks side by side against the same networks one by one."""

import numpy as np
import pytest

import quietbit
from quietbit.mechanism.ball import Norm
from quietbit.privacy.guarantee import Unit
from quietbit.simulate.problem import LocalPlan
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.module import ModuleProblem, femnist_network, mnist_network

torch = pytest.importorskip("torch")
nn = torch.nn

from quietbit_lab.task.module_stack import StackedLayers  # noqa: E402


def other_network():
    """Two colours, a kernel that is no square, tanh, overlapping windows, two dense layers."""
    return nn.Sequential(
        nn.Conv2d(2, 5, (5, 3), padding=(2, 1)),
        nn.Tanh(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(5, 6, 1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 6 * 6, 9),
        nn.ELU(),
        nn.Linear(9, 62),
    )


def images(shape, count=30):
    """Noise with an empty band, as paper is: windows of the band hold the same value four times."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    inputs[:, :9] = 0
    labels = rng.integers(0, 62, count)
    return Dataset("noise", 62, Examples(inputs, labels), Examples(inputs, labels))


CASES = {"femnist": (femnist_network, (28, 28)), "other": (other_network, (28, 28, 2)), "dense": (None, (28, 28))}


def made(name):
    make, shape = CASES[name]
    if make is None:
        make = lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 784, 62))  # noqa: E731
    owners = Partition.by_owner(np.repeat([0, 1, 2], [4, 11, 15]))
    return ModuleProblem(images(shape), owners, make), StackedLayers.of(make())


@pytest.mark.parametrize("name", list(CASES))
def test_updates_are_those_of_one_network_at_a_time(name):
    """Three models, three clips, clients of different sizes; one clip is so large that nothing is cut."""
    problem, layers = made(name)
    models = np.stack([problem.initial(seed) for seed in (1, 2, 3)])
    clips, clients = (1.0, 0.2, 1e6), np.array([2, 0])
    examples = np.concatenate([problem.partition.of(int(client)) for client in clients])
    inputs, labels = problem._train.batch(examples)
    rows, finite = layers.clipped_means(
        torch.from_numpy(models), inputs, labels, [15, 4], torch.tensor(clips, dtype=torch.float64)
    )
    assert layers.dimension == problem.dimension
    assert finite.tolist() == [True] * 3
    for model, clip, found in zip(models, clips, rows.numpy(), strict=True):
        alone = np.zeros((2, problem.dimension), dtype=np.float32)
        problem.updates(model, clients, LocalPlan(Norm.L2, clip, Unit.SAMPLE), alone)
        np.testing.assert_allclose(found, alone, atol=5e-6 * np.abs(alone).max())
    scores = layers.scores(torch.from_numpy(models), inputs)
    alone = problem._module(models[1])(inputs).detach()
    torch.testing.assert_close(scores[1], alone, atol=1e-5, rtol=1e-4)


def test_a_model_that_is_not_finite_says_so_and_spoils_no_other():
    problem, layers = made("femnist")
    models = torch.from_numpy(np.stack([problem.initial(seed) for seed in (1, 2)]))
    inputs, labels = problem._train.batch(np.arange(6))
    clips = torch.ones(2, dtype=torch.float64)
    before, _ = layers.clipped_means(models, inputs, labels, [6], clips)
    models[0, 5] = torch.nan
    rows, finite = layers.clipped_means(models, inputs, labels, [6], clips)
    assert finite.tolist() == [False, True]
    torch.testing.assert_close(rows[1], before[1])


@pytest.mark.parametrize(
    "make",
    [
        mnist_network,  # strides
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(8, 2)),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 2)),
        lambda: nn.Sequential(nn.Linear(8, 2), nn.Dropout()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
        lambda: nn.Sequential(type("OwnLinear", (nn.Linear,), {})(4, 4)),
    ],
)
def test_other_stacks_are_refused(make):
    with pytest.raises(quietbit.InvalidParameter):
        StackedLayers.of(make())
