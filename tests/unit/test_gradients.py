"""Gradients of single samples: against torch's own, clipped one by one, in every kind of layer."""

import pytest

from quietbit.errors import InvalidParameter
from quietbit.gradients import clipped_sum, private_gradient, sample_gradients

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
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))  # fmt: skip


MODELS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "deep": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "written over": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)), (5,)),
    "convolutional": (convolutional, (2, 12, 12)),
    "one-dimensional": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(21, 3)), (2, 7)),
    "sequence": (Sequence, (4, 6)),
    "twice": (Twice, (5,)),
    "unknown layer": (lambda: nn.Sequential(nn.Linear(5, 3), nn.PReLU()), (5,)),
}


def setting(name, count=9):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().double(), (torch.randn(count, *shape, dtype=torch.float64), torch.randint(0, 3, (count,)))


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
    torch.testing.assert_close(sample_gradients(model, loss, batch).double(), wanted, rtol=1e-5, atol=1e-7)
    assert all(part.grad is None for part in model.parameters())


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_every_sample_is_clipped_by_itself(name, chunk):
    model, batch = setting(name)
    rows = one_by_one(model, batch)
    clip = float(rows.norm(dim=1).median())
    wanted = (rows * (clip / rows.norm(dim=1).clamp(min=clip))[:, None]).sum(dim=0)
    found = torch.cat([part.reshape(-1) for part in clipped_sum(model, loss, batch, clip, chunk=chunk)])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_one_sample_moves_the_sum_by_no_more_than_the_clip():
    model, (x, y) = setting("convolutional")
    huge = x.clone()
    huge[4] *= 1e6
    one, other = (torch.cat([p.reshape(-1) for p in clipped_sum(model, loss, (z, y), 0.01)]) for z in (x, huge))
    assert float((one - other).norm()) <= 0.02 * (1 + 1e-9)


def test_an_empty_batch_is_zero_and_the_divisor_is_public():
    model, batch = setting("deep")
    empty = (batch[0][:0], batch[1][:0])
    assert all(float(part.abs().sum()) == 0 for part in private_gradient(model, loss, empty, 1.0, expected=50))
    whole = clipped_sum(model, loss, batch, 1.0)
    for one, other in zip(private_gradient(model, loss, batch, 1.0, expected=50), whole, strict=True):
        torch.testing.assert_close(one * 50, other)


def test_layers_that_mix_samples_are_refused():
    mixed = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    batch = torch.randn(6, 5), torch.randint(0, 3, (6,))
    with pytest.raises(InvalidParameter, match=r"layer '1'.*group_norm"):
        clipped_sum(mixed, loss, batch, 1.0)

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(5, 3)

        def forward(self, x):
            return self.last(x - x.mean(dim=0))

    with pytest.raises(InvalidParameter, match="does not depend on the other samples"):
        clipped_sum(Centred(), loss, batch, 1.0)


def test_a_mean_loss_and_gradients_that_are_not_finite_are_refused():
    model, batch = setting("deep")
    with pytest.raises(InvalidParameter, match="one number per sample"):
        clipped_sum(model, torch.nn.functional.cross_entropy, batch, 1.0)
    bad = batch[0].clone()
    bad[3, 0] = float("nan")
    with pytest.raises(InvalidParameter, match="finite for every sample"):
        clipped_sum(model, loss, (bad, batch[1]), 1.0)


def test_frozen_parameters_and_mixed_precision():
    model, batch = setting("deep")
    model[0].weight.requires_grad_(False)
    assert len(clipped_sum(model, loss, batch, 1.0)) == 3
    plain = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    given = batch[0].float(), batch[1]

    def mixed(outputs, targets):
        return loss(outputs.float(), targets)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = clipped_sum(plain, mixed, given, 0.5)
    for one, other in zip(rough, clipped_sum(plain, mixed, given, 0.5), strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm()) < 0.05 * float(other.norm()) + 0.05
