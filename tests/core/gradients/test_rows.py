"""Gradients of single samples: batches, losses and numbers of every kind.

That a row is the gradient of a batch of one, `test_attacks.py` says of every model.
"""

import pytest

from quietbit.gradients import sample_gradients

torch = pytest.importorskip("torch")
nn = torch.nn
COUNT = 9


def setting():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return model, (torch.randn(COUNT, 5), torch.randint(0, 3, (COUNT,)))


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.float(), targets, reduction="none")


def test_an_empty_batch_has_no_rows():
    model, batch = setting()
    none = sample_gradients(model, loss, (batch[0][:0], batch[1][:0]))
    assert none.shape == (0, 5 * 7 + 7 + 7 * 3 + 3)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_reduction_is_the_same(reduction):
    model, batch = setting()
    wanted = sample_gradients(model, loss, batch)
    for given in (
        nn.CrossEntropyLoss(reduction=reduction),
        lambda a, b: nn.functional.cross_entropy(a, b, reduction=reduction),
    ):
        torch.testing.assert_close(sample_gradients(model, given, batch), wanted)


def test_a_sample_that_is_not_finite_spoils_its_own_row_alone():
    model, batch = setting()
    batch[0][3, 0] = float("nan")
    finite = torch.isfinite(sample_gradients(model, loss, batch)).all(dim=1)
    assert finite.tolist() == [place != 3 for place in range(COUNT)]


def test_frozen_parameters_have_no_columns():
    model, batch = setting()
    model[0].weight.requires_grad_(False)
    assert sample_gradients(model, loss, batch).shape == (COUNT, 7 + 7 * 3 + 3)


def test_mixed_precision_gives_rows_in_full_precision():
    model, batch = setting()
    exact = sample_gradients(model, loss, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = sample_gradients(model, loss, batch)
    assert rough.dtype == torch.float32
    assert 0 < float((rough - exact).norm()) < 0.05 * float(exact.norm()) + 0.05
