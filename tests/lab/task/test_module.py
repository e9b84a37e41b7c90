import numpy as np
import pytest

import quietbit
from federation.simulate.makers import chosen, small_dataset
from quietbit.federation.simulate.loop import simulate
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.mechanism.ball import Ball, Norm
from quietbit.target import Unit
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.module import ModuleProblem, femnist_network, mnist_network
from refusals import refuses

torch = pytest.importorskip("torch")


def linear():
    return torch.nn.Linear(12, 3)


PLANS = [LocalPlan(norm, 0.4, unit) for norm in Norm for unit in Unit]
PLANS += [LocalPlan(Norm.L2, 100.0, steps=3, rate=0.2)]


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.norm} {plan.unit} {plan.steps}")
def test_a_linear_module_has_the_updates_of_the_linear_problem(samples, plan):
    """The same model twice: as a torch module, and by outer products."""
    dataset = small_dataset()
    split = Partition.groups(60, samples, 0)
    module, outer = ModuleProblem(dataset, split, linear), LinearSoftmax(dataset, split)
    parameters = module.initial(3)
    left, right = np.zeros((6, 39), dtype=np.float32), np.zeros((6, 39), dtype=np.float32)
    module.updates(parameters, np.arange(6), plan, left)
    outer.updates(parameters, np.arange(6), plan, right)
    np.testing.assert_allclose(left, right, atol=2e-6 if plan.steps == 1 else 1e-4)
    assert all(Ball(plan.norm, 39).contains(row, plan.clip) for row in left)
    assert module.evaluate(parameters).loss == pytest.approx(
        outer.evaluate(parameters).loss, rel=1e-5
    )


def test_the_paper_networks_have_their_sizes():
    sizes = [
        sum(p.numel() for p in make().parameters()) for make in (mnist_network, femnist_network)
    ]
    assert sizes == [26010, 45982]


def noise(count, each, make=mnist_network, **given):
    """Clients of ``each`` noisy images and a network, with a start."""
    rng, classes = np.random.default_rng(0), make()[-1].out_features
    inputs = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    examples = Examples(inputs, np.arange(count) % classes)
    dataset = Dataset("noise", classes, examples, examples)
    problem = ModuleProblem(dataset, Partition.groups(count, each, 0), make, **given)
    return problem, problem.initial(1)


@pytest.mark.parametrize("make", [mnist_network, femnist_network])
def test_sample_gradients_are_those_of_one_sample_at_a_time(make):
    problem, parameters = noise(6, 1, make)
    for client in range(3):
        (example,) = problem.partition.of(client)
        (found,) = problem.gradients(parameters, client)
        model = make()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters), model.parameters())
        image = torch.from_numpy(problem.dataset.train.inputs[example].astype(np.float32) / 255)
        label = torch.tensor([problem.dataset.train.labels[example]])
        torch.nn.functional.cross_entropy(model(image[None, None]), label).backward()
        alone = torch.cat([part.grad.reshape(-1) for part in model.parameters()]).numpy()
        np.testing.assert_allclose(found, alone, atol=1e-5 * np.abs(alone).max())


def small(samples=5):
    """Clusters that a linear module learns, with a start."""
    problem = ModuleProblem(small_dataset(), Partition.groups(60, samples, 0), linear)
    return problem, problem.initial(1)


def test_pieces_that_cross_clients_change_nothing(monkeypatch):
    """What a GPU does: all samples of a cohort in a few pieces, which cut through clients."""
    problem, parameters = small()
    plan, clients = LocalPlan(Norm.L2, 0.3, Unit.SAMPLE), np.array([3, 0, 2, 1])
    rows = np.zeros((2, 4, problem.dimension), dtype=np.float32)
    problem.updates(parameters, clients, plan, rows[0])

    def crossing(self, clients):
        examples = np.concatenate([self.partition.of(int(c)) for c in clients])
        owners = np.repeat(np.arange(clients.size), self.sizes[clients])
        for start in range(0, examples.size, 7):
            yield examples[start : start + 7], owners[start : start + 7]

    monkeypatch.setattr(ModuleProblem, "_pieces", crossing)
    problem.updates(parameters, clients, plan, rows[1])
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-6)


def test_a_gradient_that_is_not_finite_is_refused():
    problem, parameters = small()
    parameters[0] = np.nan
    row = np.zeros((1, problem.dimension), dtype=np.float32)
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        problem.updates(parameters, np.array([0]), LocalPlan(Norm.L2, 1.0, Unit.SAMPLE), row)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_one_sentence():
    with refuses("device", "cuda"):
        noise(4, 1, device="cuda")


def test_inputs_of_the_users_own_making():
    flipped = lambda inputs: 1 - inputs[:, None].astype(np.float32) / 255  # noqa: E731
    problem, parameters = noise(6, 3, prepare=flipped)
    assert problem.evaluate(parameters).loss != noise(6, 3)[0].evaluate(parameters).loss


def test_a_user_module_trains_at_sample_level():
    problem, _ = small(samples=10)
    given = {"design_epsilon": 1.0, "beta": 8.0, "clamp": True, "lr": 0.1, "rounds": 2}
    setup = chosen(mechanism="imvu", cohort=2, clip=1.0, unit="sample", rng="seeded", **given)
    first, second = simulate(problem, *setup), simulate(problem, *setup, threads=2)
    assert first.status == "finished"
    np.testing.assert_array_equal(first.parameters, second.parameters)
    assert first.guarantee.unit is Unit.SAMPLE


def test_seeds_start_differently_and_leave_torch_alone():
    problem, first = small()
    state = torch.random.get_rng_state()
    assert not np.array_equal(first, problem.initial(2))
    np.testing.assert_array_equal(first, problem.initial(1))
    assert torch.equal(state, torch.random.get_rng_state())


def test_batch_statistics_are_refused():
    make = lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 3))  # noqa: E731
    with refuses("buffers of the model"):
        ModuleProblem(small_dataset(), Partition.one_each(60), make)
