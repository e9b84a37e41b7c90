import itertools

import numpy as np
import pytest

from quietbit_lab.task import feature_cache
from quietbit_lab.task import scatter as module
from quietbit_lab.task.dataset import Dataset, Examples
from quietbit_lab.task.feature_cache import featured
from quietbit_lab.task.scatter import scatter, scattered


def images(count=6, shape=(28, 28), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def dataset(seed=0):
    labels = np.zeros(6, dtype=np.int64)
    return Dataset(
        "noise", 10, Examples(images(seed=seed), labels), Examples(images(seed=seed + 1), labels)
    )


@pytest.mark.parametrize(("shape", "wanted"), [((28, 28), (81, 7, 7)), ((32, 32, 3), (243, 8, 8))])
def test_shapes_are_those_of_the_paper(shape, wanted):
    assert scatter(images(2, shape)).shape == (2, *wanted)


def test_groups_are_normalised():
    plain = scatter(images(), normalised=False).reshape(6, 27, -1).astype(np.float64)
    wanted = (plain - plain.mean(axis=2, keepdims=True)) / np.sqrt(
        plain.var(axis=2, keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(scatter(images()).reshape(6, 27, -1), wanted, atol=1e-4)
    # The first channel is a local average: between the darkest and the brightest pixel.
    first = scatter(images(), normalised=False)[:, 0]
    assert 0 < first.min() < first.max() < 1


def test_an_image_does_not_depend_on_its_neighbours():
    both, alone = scatter(images()), scatter(images()[3:4])
    np.testing.assert_allclose(both[3:4], alone, atol=1e-4)


def test_features_are_computed_once(tmp_path, monkeypatch):
    told = []
    first = scattered(dataset(), lambda fraction, message: told.append(fraction), tmp_path)
    assert told == [1.0, 1.0]
    np.testing.assert_allclose(first.train.inputs, scatter(images()), atol=1e-5)
    monkeypatch.setattr(module, "scatter", lambda *_, **__: pytest.fail("computed again"))
    second = scattered(dataset(), None, tmp_path)
    np.testing.assert_array_equal(first.train.inputs, second.train.inputs)


def flipped(content, _=None):
    return content[:-7] + bytes([content[-7] ^ 4]) + content[-6:]


@pytest.mark.parametrize("harm", ["flip", "cut", "note", "other images"])
def test_a_corrupt_cache_is_computed_again(tmp_path, harm):
    first = np.array(scattered(dataset(), None, tmp_path).train.inputs)
    path, note = tmp_path / "noise-train.npy", tmp_path / "noise-train.json"
    content = path.read_bytes()
    if harm == "other images":
        scattered(dataset(seed=5), None, tmp_path)
    elif harm == "note":
        note.write_text("{")
    else:
        path.write_bytes(flipped(content) if harm == "flip" else content[:-100])
    again = scattered(dataset(), None, tmp_path).train.inputs
    np.testing.assert_array_equal(first, again)


HARMS = {"flip": flipped, "cut": lambda one, _: one[:-4], "moved": lambda _, other: other}
OTHER = {"other images": {"seed": 7}, "otherwise": {"how": "other"}}


@pytest.mark.parametrize("harm", ["none", *HARMS, *OTHER])
def test_a_stopped_computation_goes_on_where_it_was(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(feature_cache, "PIECE", 2)

    def run(calls, seed=0, how="plain"):
        def compute(images):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return images.reshape(len(images), -1).astype(np.float32)

        return featured(dataset(seed), compute, how, kind="plain", batch=1, folder=tmp_path)

    with pytest.raises(KeyboardInterrupt):
        run(iter(range(6)))  # the shape, two pieces of two, and half of the third
    first, second = sorted(tmp_path.glob("*.piece"))
    if harm in HARMS:
        first.write_bytes(HARMS[harm](first.read_bytes(), second.read_bytes()))
    given, calls = OTHER.get(harm, {}), itertools.count()
    found = run(calls, **given)
    again = 2 * (harm in HARMS) + 4 * (harm in OTHER)
    assert next(calls) == (1 + 2 + again) + (1 + 6)  # the rest of training images, then the tests
    inputs = dataset(given.get("seed", 0)).train.inputs
    np.testing.assert_array_equal(found.train.inputs, inputs.reshape(6, -1))
    assert not list(tmp_path.glob("*.piece"))
