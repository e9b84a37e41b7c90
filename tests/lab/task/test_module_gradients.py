import numpy as np
import pytest

from quietbit_lab.task.module import femnist_network, mnist_network

torch = pytest.importorskip("torch")
nn = torch.nn

from quietbit_lab.task.module_gradients import LayerGradients, MappedGradients, sample_gradients_of  # noqa: E402


def odd_network():
    """Strides, dilations, padding, no bias, nested stacks, a dense layer on several places, norms without weights."""
    return nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False),
        nn.Sequential(nn.GroupNorm(3, 6, affine=False), nn.SiLU()),
        nn.Linear(6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 7, bias=False),
    )


CASES = {
    "femnist": (femnist_network, (1, 28, 28)),
    "mnist": (mnist_network, (1, 28, 28)),
    "odd": (odd_network, (2, 8, 8)),
}


def made(name, count=5):
    make, shape = CASES[name]
    torch.manual_seed(0)
    module = make()
    last = torch.channels_last
    weights = {
        key: value.detach().to(memory_format=last) if value.ndim == 4 else value.detach()
        for key, value in module.named_parameters()
    }
    rng = np.random.default_rng(1)
    inputs = torch.from_numpy(rng.normal(size=(count, *shape)).astype(np.float32))
    return module, weights, inputs, torch.arange(count) % 7


@pytest.mark.parametrize("name", list(CASES))
def test_layers_give_the_gradients_of_single_samples(name):
    module, weights, inputs, labels = made(name)
    by_layers = sample_gradients_of(module)
    assert isinstance(by_layers, LayerGradients)
    found = by_layers(weights, inputs, labels)
    for k in range(len(labels)):
        module.zero_grad()
        nn.functional.cross_entropy(module(inputs[k : k + 1]), labels[k : k + 1]).backward()
        for part, parameter in zip(found, module.parameters(), strict=True):
            alone = parameter.grad.reshape(-1)
            torch.testing.assert_close(part[k], alone, atol=1e-5 * float(alone.abs().max()) + 1e-9, rtol=1e-4)


@pytest.mark.parametrize("name", list(CASES))
def test_both_ways_agree_and_score_alike(name):
    module, weights, inputs, labels = made(name)
    mapped, by_layers = MappedGradients(module), sample_gradients_of(module)
    for left, right in zip(mapped(weights, inputs, labels), by_layers(weights, inputs, labels), strict=True):
        torch.testing.assert_close(left, right, atol=1e-5 * float(right.abs().max()) + 1e-9, rtol=1e-4)
    torch.testing.assert_close(mapped.scores(weights, inputs), by_layers.scores(weights, inputs))


def test_no_sample_feels_another():
    """Infinite inputs of one sample leave the others' gradients as they were: nothing mixes samples."""
    module, weights, inputs, labels = made("odd")
    by_layers = sample_gradients_of(module)
    before = by_layers(weights, inputs, labels)
    inputs[2] = float("inf")
    others = [0, 1, 3, 4]
    for left, right in zip(before, by_layers(weights, inputs, labels), strict=True):
        torch.testing.assert_close(left[others], right[others], rtol=0, atol=0)


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def hooked():
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].register_forward_hook(lambda *_: None)
    return module


class OwnLinear(nn.Linear):
    """A subclass may compute anything."""


@pytest.mark.parametrize(
    "make",
    [
        shared,
        hooked,
        lambda: nn.Sequential(OwnLinear(4, 4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding="same")),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    ],
)
def test_what_is_not_on_the_list_goes_through_vmap(make):
    assert isinstance(sample_gradients_of(make()), MappedGradients)
