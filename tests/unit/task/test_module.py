import numpy as np
import pytest

import quietbit
from quietbit.federation.problem import LocalPlan
from quietbit.federation.settings import Settings
from quietbit.federation.simulate import simulate
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.privacy.guarantee import Unit
from quietbit.task.dataset import Dataset, Examples, Partition
from quietbit.task.linear import LinearSoftmax
from quietbit.task.module import ModuleProblem
from quietbit.task.networks import femnist_network, mnist_network
from unit.federation.makers import small_dataset

torch = pytest.importorskip("torch")


def linear():
    return torch.nn.Linear(12, 3)


def pair(samples=5):
    """The same model twice: as a torch module, and by outer products."""
    dataset = small_dataset()
    split = Partition.groups(dataset.train.count, samples, 0) if samples > 1 else Partition.one_each(60)
    return ModuleProblem(dataset, split, linear), LinearSoftmax(dataset, split)


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("norm", list(Norm))
def test_a_linear_module_has_the_updates_of_the_linear_problem(samples, unit, norm):
    module, outer = pair(samples)
    parameters = module.initial(3)
    assert parameters.shape == (39,)
    clients, plan = np.arange(6), LocalPlan(norm, 0.4, unit)
    left, right = np.zeros((6, 39), dtype=np.float32), np.zeros((6, 39), dtype=np.float32)
    module.updates(parameters, clients, plan, left)
    outer.updates(parameters, clients, plan, right)
    np.testing.assert_allclose(left, right, atol=2e-6)
    assert all(Ball(norm, 0.4, 39).contains(row) for row in left)
    assert module.evaluate(parameters).loss == pytest.approx(outer.evaluate(parameters).loss, rel=1e-5)


def test_several_local_steps_agree_too():
    module, outer = pair()
    parameters, plan = module.initial(3), LocalPlan(Norm.L2, 100.0, steps=3, rate=0.2)
    left, right = np.zeros((2, 39), dtype=np.float32), np.zeros((2, 39), dtype=np.float32)
    module.updates(parameters, np.arange(2), plan, left)
    outer.updates(parameters, np.arange(2), plan, right)
    np.testing.assert_allclose(left, right, atol=1e-4)


def test_the_paper_networks_have_their_sizes():
    sizes = [sum(p.numel() for p in make().parameters()) for make in (mnist_network, femnist_network)]
    assert sizes == [26010, 45982]


def images(count, classes):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    return Dataset(
        "noise",
        classes,
        Examples(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), labels),
        Examples(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), labels),
    )


@pytest.mark.parametrize(("make", "classes"), [(mnist_network, 10), (femnist_network, 62)])
def test_sample_gradients_are_those_of_one_sample_at_a_time(make, classes):
    problem = ModuleProblem(images(6, classes), Partition.one_each(6), make)
    parameters = problem.initial(1)
    each = problem.sample_gradients(parameters, np.arange(3))
    for k in range(3):
        np.testing.assert_allclose(each[k], problem._gradient(parameters, np.array([k])), atol=1e-5)


def test_a_user_module_trains_at_sample_level():
    problem = ModuleProblem(images(40, 10), Partition.groups(40, 10, 0), mnist_network)
    settings = Settings("imvu", 0.1, 2, 2, 1.0, epsilon=1.0, beta=8.0, clamp=True, unit="sample", words="seeded")
    first, second = simulate(problem, settings), simulate(problem, settings, threads=2)
    assert first.status == "finished"
    np.testing.assert_array_equal(first.parameters, second.parameters)
    assert first.guarantee.unit is Unit.SAMPLE


def test_seeds_start_differently_and_leave_torch_alone():
    module, _ = pair()
    state = torch.random.get_rng_state()
    assert not np.array_equal(module.initial(1), module.initial(2))
    np.testing.assert_array_equal(module.initial(1), module.initial(1))
    assert torch.equal(state, torch.random.get_rng_state())


def test_batch_statistics_are_refused():
    dataset = small_dataset()
    make = lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 3))  # noqa: E731
    with pytest.raises(quietbit.InvalidParameter, match="buffers"):
        ModuleProblem(dataset, Partition.one_each(60), make)
