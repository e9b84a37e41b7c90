"""A CNN with BatchNorm is refused by name, helped, and then trains and travels."""

import numpy as np
import pytest

from quietbit import Ball, Gaussian, InvalidParameter, Norm, Uplink, group_norm
from refusals import refuses

torch = pytest.importorskip("torch", reason="needs the torch extra")
nn = torch.nn


def cnn():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 12),
        nn.BatchNorm1d(12),
        nn.Linear(12, 3),
    )


class Untouched:
    """Random bits that nobody may ask for."""

    def __getattr__(self, name):
        raise AssertionError(name)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda mechanism, state: Ball.of(state),
        lambda mechanism, state: Uplink(mechanism, like=state),
        lambda mechanism, state: Uplink(mechanism).send(state, Untouched()),
    ],
)
def test_every_statistic_is_named_at_once_before_anything_is_sent(attempt):
    state = cnn().state_dict()
    mechanism = Gaussian(Ball(Norm.L2, sum(value.numel() for value in state.values())), 1.0)
    with pytest.raises(InvalidParameter, match="6 arrays are not trainable") as refused:
        attempt(mechanism, state)
    assert "quietbit.group_norm" in str(refused.value)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert f"1.{name}" in str(refused.value)
        assert f"5.{name}" in str(refused.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"a": np.zeros(2), "mask": np.ones(3, bool), "n": np.zeros((), np.int64)},
            r"mask \(bool\), n \(int64\)",
        ),
        (
            {"batch_stats/mean": np.zeros(2)},
            "1 array is not a trainable parameter: batch_stats/mean",
        ),
        ({"bn.moving_variance": np.zeros(2)}, r"moving_variance \(a statistic\)"),
        ({"z": np.zeros(2, complex)}, r"z \(complex128\)"),
        ({"a": 3.0}, "parameter 'a' must be an array"),
        ([np.zeros(2)], "parameters must be a dict of arrays by name"),
        ({}, "dimension must be"),
    ],
)
def test_a_ball_of_what_is_no_model_is_refused(arrays, says):
    with pytest.raises(InvalidParameter, match=says):
        Ball.of(arrays)


def test_a_ball_counts_parameters_of_any_library_and_type():
    arrays = {
        "a": np.zeros((2, 3), ">f4"),
        "b": torch.zeros(5, dtype=torch.bfloat16),
        "scale": np.zeros(()),
    }
    assert Ball.of(arrays, Norm.L1) == Ball(Norm.L1, 12)


def test_the_helped_model_computes_learns_and_travels():
    model, images = group_norm(cnn()), torch.randn(16, 1, 8, 8)
    labels = torch.arange(16) % 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(12):
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        step.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    # No mode in which it is another model.
    assert torch.equal(model.eval()(images), model.train()(images))
    state = model.state_dict()
    uplink = Uplink(Gaussian(Ball.of(state), 1e-6), like=state, clip=100)
    update = {name: before[name] - value for name, value in state.items()}
    mean = uplink.receive([uplink.send(update)])
    assert all(torch.allclose(mean[name], update[name], atol=1e-2) for name in update)


def test_weights_types_and_modes_are_kept_and_the_original_is_untouched():
    model = cnn().double().eval()
    model[1].weight.data.uniform_(1, 2)
    model[1].bias.requires_grad_(False)
    helped = group_norm(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert torch.equal(helped[1].weight, model[1].weight)
    assert helped[1].weight is not model[1].weight
    assert helped[1].weight.dtype is torch.float64
    assert not helped[1].bias.requires_grad
    assert not helped[1].training
    assert torch.equal(helped[0].weight, model[0].weight)


def test_every_layer_that_notes_statistics_is_replaced_and_no_other():
    shared = nn.BatchNorm2d(64)
    model = nn.ModuleDict(
        {
            "a": shared,
            "b": nn.ModuleList([shared]),
            "plain": nn.InstanceNorm2d(6, track_running_stats=False),
            "instance": nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
            "sync": nn.SyncBatchNorm(7),
            "volume": nn.BatchNorm3d(3, affine=False),
            "layer": nn.LayerNorm(4),
        }
    )
    helped = group_norm(model, groups=8)
    assert helped["a"] is helped["b"][0]
    assert [helped[name].num_groups for name in ("a", "instance", "sync", "volume")] == [8, 6, 1, 1]
    assert isinstance(helped["plain"], nn.InstanceNorm2d)
    assert isinstance(helped["layer"], nn.LayerNorm)
    assert not helped["volume"].affine
    x = torch.randn(4, 6, 5, 5)
    model["instance"].train()
    assert torch.allclose(helped["instance"](x), model["instance"](x), atol=1e-5)
    assert isinstance(group_norm(nn.BatchNorm1d(4)), nn.GroupNorm)


def test_features_without_pixels_are_not_normalised_to_nothing():
    helped = group_norm(nn.BatchNorm1d(32))
    assert float(helped(torch.randn(5, 32)).detach().std()) > 0.5


@pytest.mark.parametrize(
    ("model", "groups", "name"),
    [
        (nn.Sequential(nn.LazyBatchNorm2d()), 2, "layer '0'"),
        (nn.BatchNorm1d(1), 2, "channels of model"),
        ({"a": np.zeros(2)}, 2, "model"),
        (nn.BatchNorm1d(4), 0, "groups"),
    ],
)
def test_what_cannot_be_helped_is_refused(model, groups, name):
    with refuses(name):
        group_norm(model, groups=groups)
