"""Gradients of single samples: against torch's own, in every kind of layer."""

import pytest

from quietbit.gradients import sample_gradients

torch = pytest.importorskip("torch")
nn = torch.nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x)))).mean(dim=1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


MODELS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "deep": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "written over": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)),
        (5,),
    ),
    "convolutional": (convolutional, (2, 12, 12)),
    "one-dimensional": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(21, 3)),
        (2, 7),
    ),
    "sequence": (Sequence, (4, 6)),
    "twice": (Twice, (5,)),
    "unknown layer": (lambda: nn.Sequential(nn.Linear(5, 3), nn.PReLU()), (5,)),
}


def setting(name, count=9):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().double(), (
        torch.randn(count, *shape, dtype=torch.float64),
        torch.randint(0, 3, (count,)),
    )


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def one_by_one(model, batch):
    found = []
    for x, y in zip(*batch, strict=True):
        parts = torch.autograd.grad(loss(model(x[None]), y[None]).sum(), list(model.parameters()))
        found.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_the_gradients_of_single_samples(name):
    model, batch = setting(name)
    wanted = one_by_one(model, batch)
    torch.testing.assert_close(
        sample_gradients(model, loss, batch).double(), wanted, rtol=1e-5, atol=1e-7
    )
    assert all(part.grad is None for part in model.parameters())


def test_an_empty_batch_has_no_rows():
    model, batch = setting("deep")
    assert sample_gradients(model, loss, (batch[0][:0], batch[1][:0])).shape == (
        0,
        5 * 7 + 7 + 7 * 3 + 3,
    )


@pytest.mark.parametrize(
    ("name", "reduction"),
    [("deep", "none"), ("deep", "mean"), ("deep", "sum"), ("sequence", "mean")],
)
def test_every_reduction_is_the_same(name, reduction):
    model, batch = setting(name)
    wanted = one_by_one(model, batch)
    for given in (
        nn.CrossEntropyLoss(reduction=reduction),
        lambda a, b: nn.functional.cross_entropy(a, b, reduction=reduction),
    ):
        rows = sample_gradients(model, given, batch)
        torch.testing.assert_close(rows.double(), wanted, rtol=1e-5, atol=1e-7)


def test_a_sample_that_is_not_finite_spoils_its_own_row_alone():
    model, batch = setting("deep")
    bad = batch[0].clone()
    bad[3, 0] = float("nan")
    finite = torch.isfinite(sample_gradients(model, loss, (bad, batch[1]))).all(dim=1)
    assert finite.tolist() == [place != 3 for place in range(9)]


def test_frozen_parameters_and_mixed_precision():
    model, batch = setting("deep")
    model[0].weight.requires_grad_(False)
    assert sample_gradients(model, loss, batch).shape == (9, 7 + 7 * 3 + 3)
    plain = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    given = batch[0].float(), batch[1]

    def mixed(outputs, targets):
        return loss(outputs.float(), targets)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = sample_gradients(plain, mixed, given)
    exact = sample_gradients(plain, mixed, given)
    assert rough.dtype == torch.float32
    assert float((rough - exact).norm()) < 0.05 * float(exact.norm()) + 0.05
