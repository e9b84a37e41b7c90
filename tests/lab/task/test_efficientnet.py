"""The pre-trained network's features against an independent network, and its weights."""

from pathlib import Path

import numpy as np
import pytest

from quietbit import InvalidParameter
from quietbit_lab.task.dataset import DamagedData, Dataset, Examples, MissingData, Partition
from quietbit_lab.task.efficientnet import (
    FEATURES,
    LENGTH,
    NAMED,
    SCALES,
    EfficientNetLite0,
    public_file,
    read_efficientnet,
)
from quietbit_lab.task.linear import LinearSoftmax

torch = pytest.importorskip("torch")
PUBLIC = Path(__file__).parents[3] / "experiments" / "efficientnet_public.npz"
# kernel, stride, widening, channels out: the published table of EfficientNet-Lite0's sixteen blocks
BLOCKS = [(3, 1, 1, 16), (3, 2, 6, 24), (3, 1, 6, 24), (5, 2, 6, 40), (5, 1, 6, 40)]
BLOCKS += [(3, 2, 6, 80), *[(3, 1, 6, 80)] * 2, *[(5, 1, 6, 112)] * 3]
BLOCKS += [(5, 2, 6, 192), *[(5, 1, 6, 192)] * 3, (3, 1, 6, 320)]


NORM = {"weight": 1.5, "bias": 0.3, "running_mean": 0.0, "running_var": 1.0}


def random_weights():
    """Weights of the right shapes that keep activations of order one."""
    rng, found = np.random.default_rng(0), {}

    def layer(conv, norm, out, into, side):
        weight = rng.normal(size=(out, into, side, side)) / np.sqrt(into * side**2)
        found[f"{conv}.weight"] = weight.astype("f4")
        found.update({f"{norm}.{key}": np.full(out, value, "f4") for key, value in NORM.items()})

    layer("_conv_stem", "_bn0", 32, 3, 3)
    into = 32
    for place, (side, _, widening, out) in enumerate(BLOCKS):
        name, wide = f"_blocks.{place}", into * widening
        if widening > 1:
            layer(f"{name}._expand_conv", f"{name}._bn0", wide, into, 1)
        layer(f"{name}._depthwise_conv", f"{name}._bn1", wide, 1, side)
        layer(f"{name}._project_conv", f"{name}._bn2", out, wide, 1)
        into = out
    layer("_conv_head", "_bn1", 1280, 320, 1)
    found["_fc.weight"] = rng.normal(size=(1000, 1280)).astype("f4")
    return found


def by_layers(weights, x):
    """The same network from torch's layers, padded by the rule it was trained with."""
    functional = torch.nn.functional
    known = {name: torch.from_numpy(value) for name, value in weights.items()}

    def layer(x, conv, norm, stride=1):
        weight = known[f"{conv}.weight"]
        whole = max(weight.shape[-1] - (x.shape[-1] % stride or stride), 0)
        x = functional.pad(x, (whole // 2, whole - whole // 2) * 2)
        x = functional.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        scale, shift, mean, variance = (known[f"{norm}.{key}"] for key in NORM)
        return functional.batch_norm(x, mean, variance, scale, shift, eps=1e-3)

    cut = functional.relu6
    x = cut(layer(x, "_conv_stem", "_bn0", 2))
    for place, (_, stride, widening, out) in enumerate(BLOCKS):
        name, y = f"_blocks.{place}", x
        if widening > 1:
            y = cut(layer(y, f"{name}._expand_conv", f"{name}._bn0"))
        y = cut(layer(y, f"{name}._depthwise_conv", f"{name}._bn1", stride))
        y = layer(y, f"{name}._project_conv", f"{name}._bn2")
        x = x + y if stride == 1 and x.shape[1] == out else y
    return cut(layer(x, "_conv_head", "_bn1")).mean(dim=(2, 3))


@pytest.fixture(scope="module")
def network():
    bare = EfficientNetLite0(random_weights())
    return EfficientNetLite0(bare.weights, public=bare.tuned(PUBLIC).public)


def images(count=2, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def test_channels_are_those_of_the_same_network_made_of_layers(network):
    planes = torch.from_numpy(images().transpose(0, 3, 1, 2).copy()).float()
    large = torch.nn.Upsample((224, 224), mode="bicubic")(planes).clamp(0, 255)
    with torch.no_grad():
        wanted = by_layers(network.weights, (large - 127) / 128).numpy()
    found = network.channels(images()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    assert found.std() > 0.01


def test_features_have_one_length_and_know_no_left_and_right(network):
    found = network.features(images())
    assert found.shape == (2, FEATURES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), LENGTH, rtol=1e-5)
    np.testing.assert_allclose(network.features(images()[:, :, ::-1]), found, atol=2e-4)
    assert np.abs(found[0] - found[1]).max() > 0.01


def test_a_head_starts_where_it_is_told(network):
    start = network.start()
    assert start.shape == (10 * (FEATURES + 1),)
    assert (start[-10:] == 0).all()
    examples = Examples(np.zeros((10, FEATURES), dtype=np.float32), np.arange(10))
    given = Dataset("toy", 10, examples, examples), Partition.one_each(10)
    problem = LinearSoftmax(*given, start)
    problem.initial(0)[:] = 5
    np.testing.assert_array_equal(problem.initial(0), start)  # a copy each time
    for wrong in (start[:-1], start * np.float32(np.nan)):
        with pytest.raises(InvalidParameter):
            LinearSoftmax(*given, wrong)


def public():
    with np.load(PUBLIC) as kept:
        return {name: kept[name].astype(np.float64) for name in kept.files}


def test_features_are_turned_channels(network):
    kept = public()
    sides = network.channels(images()), network.channels(images()[:, :, ::-1])
    channels = sum(side.numpy() for side in sides) / 2 - kept["mean"]
    turned = channels @ (kept["directions"] * kept["scales"]) / kept["variances"] ** 0.25
    wanted = LENGTH * turned / np.linalg.norm(turned, axis=1, keepdims=True)
    np.testing.assert_allclose(network.features(images()), wanted, atol=1e-3)


def test_the_public_file_changes_scales_and_shifts_alone(network):
    kept, tuned = public(), network.tuned(PUBLIC)
    same = [name for name, value in tuned.weights.items() if value is network.weights[name]]
    assert set(same) == set(network.weights) - set(SCALES)
    ends = np.cumsum([len(network.weights[name]) for name in SCALES])
    assert ends[-1] == len(kept["changes"]) == 42_016
    parts = np.split(kept["changes"], ends[:-1])
    for name, step, part in zip(SCALES, kept["steps"], parts, strict=True):
        wanted = network.weights[name] + step * part
        np.testing.assert_allclose(tuned.weights[name], wanted, atol=1e-5)
    assert tuned.seal != network.seal
    moved = tuned.channels(images()).numpy() - network.channels(images()).numpy()
    assert np.abs(moved).max() > 1e-3


def test_names_stand_for_classes_of_their_own():
    flat = [place for named in NAMED for place in named]
    assert len(NAMED) == 10
    assert len(set(flat)) == len(flat)
    assert min(flat) >= 0
    assert max(flat) < 1000


def test_damaged_weights_are_refused(tmp_path):
    with pytest.raises(MissingData):
        read_efficientnet(tmp_path)
    (tmp_path / "efficientnet_lite0").mkdir()
    path = tmp_path / "efficientnet_lite0" / "weights.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(DamagedData):
        read_efficientnet(tmp_path)
    whole = random_weights()
    np.savez(path, **whole)
    read_efficientnet(tmp_path)
    block = "_blocks.3._bn1.running_var"
    for change in (
        {"_fc.weight": whole["_fc.weight"][:9]},
        {"_bn0.bias": whole["_bn0.bias"] * np.nan},
        {block: whole[block][1:]},
    ):
        np.savez(path, **{**whole, **change})
        with pytest.raises(DamagedData):
            read_efficientnet(tmp_path)
    for gone in ("_blocks.3._expand_conv.weight", block):
        np.savez(path, **{name: value for name, value in whole.items() if name != gone})
        with pytest.raises(DamagedData):
            read_efficientnet(tmp_path)


@pytest.mark.needs_shared
def test_the_published_weights_name_cifars_images(shared_data):
    """Without training, five of eight images or more are right; chance is 1 in 2,000."""
    if not (shared_data / "efficientnet_lite0").is_dir():
        pytest.skip("the weights are not there")
    from quietbit_lab.task.dataset import load_packed

    planes = load_packed(shared_data / "cifar10" / "test_batch.npy.xz", (3, 10000, 32, 32))[:, :8]
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    pixels = np.stack([planes[1] + planes[0], planes[0], planes[2] + planes[0]], axis=-1)
    with np.load(shared_data / "cifar10" / "labels.npz") as kept:
        labels = kept["test"][:8]
    network = read_efficientnet(shared_data).tuned(PUBLIC)
    start = network.start()[: 10 * FEATURES].reshape(10, FEATURES)
    right = int(((network.features(pixels) @ start.T).argmax(axis=1) == labels).sum())
    assert right >= 5


def test_the_package_says_where_the_public_file_is(tmp_path):
    """It is for research: the package does without, and says so before anything is computed."""
    with pytest.raises(MissingData, match=r"copy it there from experiments/ .* terms"):
        public_file(tmp_path)
    assert PUBLIC.with_suffix(".TERMS.md").is_file()
