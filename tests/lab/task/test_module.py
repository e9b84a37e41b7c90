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


def pair(samples=5):
    """The same model twice: as a torch module, and by outer products."""
    dataset = small_dataset()
    split = (
        Partition.groups(dataset.train.count, samples, 0) if samples > 1 else Partition.one_each(60)
    )
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
    assert all(Ball(norm, 39).contains(row, 0.4) for row in left)
    assert module.evaluate(parameters).loss == pytest.approx(
        outer.evaluate(parameters).loss, rel=1e-5
    )


def test_several_local_steps_agree_too():
    module, outer = pair()
    parameters, plan = module.initial(3), LocalPlan(Norm.L2, 100.0, steps=3, rate=0.2)
    left, right = np.zeros((2, 39), dtype=np.float32), np.zeros((2, 39), dtype=np.float32)
    module.updates(parameters, np.arange(2), plan, left)
    outer.updates(parameters, np.arange(2), plan, right)
    np.testing.assert_allclose(left, right, atol=1e-4)


def test_the_paper_networks_have_their_sizes():
    sizes = [
        sum(p.numel() for p in make().parameters()) for make in (mnist_network, femnist_network)
    ]
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
    each = np.concatenate([problem.gradients(parameters, client) for client in range(3)])
    for k in range(3):
        model, start = make(), 0
        for part in model.parameters():
            part.data = torch.from_numpy(
                parameters[start : start + part.numel()].reshape(part.shape).copy()
            )
            start += part.numel()
        image = torch.from_numpy(problem.dataset.train.inputs[k].astype(np.float32) / 255)
        torch.nn.functional.cross_entropy(model(image[None, None]), torch.tensor([k])).backward()
        alone = torch.cat([part.grad.reshape(-1) for part in model.parameters()]).numpy()
        np.testing.assert_allclose(each[k], alone, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize("norm", list(Norm))
def test_no_sample_moves_an_update_by_more_than_its_share(norm):
    """Gradients are far longer than the clip; without one the sum moves by the clip at most."""
    dataset, clip = images(12, 62), 0.5
    problem = ModuleProblem(dataset, Partition.groups(12, 12, 0), femnist_network)
    parameters, plan = problem.initial(2), LocalPlan(norm, clip, Unit.SAMPLE)
    each = problem.gradients(parameters, 0).astype(np.float64)
    lengths = np.abs(each).sum(axis=1) if norm is Norm.L1 else np.linalg.norm(each, axis=1)
    assert (lengths > 2 * clip).all()
    row = np.zeros((1, problem.dimension), dtype=np.float32)
    problem.updates(parameters, np.array([0]), plan, row)
    shares = each * (clip / lengths)[:, None] / 12
    np.testing.assert_allclose(row[0], shares.sum(axis=0), atol=2e-5 * np.abs(row).max())
    for share in shares:
        moved = np.abs(share).sum() if norm is Norm.L1 else np.linalg.norm(share)
        assert moved <= clip / 12 * (1 + 1e-12)
    assert Ball(norm, problem.dimension).contains(row[0], clip)


def test_pieces_that_cross_clients_change_nothing(monkeypatch):
    """What a GPU does: all samples of a cohort in a few pieces, which cut through clients."""
    problem = ModuleProblem(images(23, 10), Partition.groups(23, 5, 0), mnist_network)
    parameters, plan = problem.initial(1), LocalPlan(Norm.L2, 0.3, Unit.SAMPLE)
    rows = np.zeros((2, 4, problem.dimension), dtype=np.float32)
    clients = np.array([3, 0, 2, 1])
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
    problem = ModuleProblem(images(4, 10), Partition.groups(4, 4, 0), mnist_network)
    parameters = problem.initial(1)
    parameters[0] = np.nan
    row = np.zeros((1, problem.dimension), dtype=np.float32)
    with pytest.raises(quietbit.InvalidParameter, match="finite"):
        problem.updates(parameters, np.array([0]), LocalPlan(Norm.L2, 1.0, Unit.SAMPLE), row)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_one_sentence():
    with refuses("device", "cuda"):
        ModuleProblem(images(4, 10), Partition.one_each(4), mnist_network, device="cuda")


def test_inputs_of_the_users_own_making():
    dataset = images(6, 10)
    flipped = lambda inputs: 1 - inputs[:, None].astype(np.float32) / 255  # noqa: E731
    problem = ModuleProblem(dataset, Partition.groups(6, 3, 0), mnist_network, prepare=flipped)
    plain = ModuleProblem(dataset, Partition.groups(6, 3, 0), mnist_network)
    parameters = problem.initial(1)
    assert problem.evaluate(parameters).loss != plain.evaluate(parameters).loss


def test_a_user_module_trains_at_sample_level():
    problem = ModuleProblem(images(40, 10), Partition.groups(40, 10, 0), mnist_network)
    setup = chosen(
        mechanism="imvu",
        lr=0.1,
        rounds=2,
        cohort=2,
        clip=1.0,
        design_epsilon=1.0,
        beta=8.0,
        clamp=True,
        unit="sample",
        rng="seeded",
    )
    first, second = simulate(problem, *setup), simulate(problem, *setup, threads=2)
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
    with refuses("buffers of the model"):
        ModuleProblem(dataset, Partition.one_each(60), make)
