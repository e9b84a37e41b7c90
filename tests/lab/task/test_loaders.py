from functools import cache

import numpy as np
import pytest

from quietbit_lab.task import images
from quietbit_lab.task.images import load_cifar10, load_femnist, load_mnist

pytestmark = pytest.mark.needs_shared


def test_mnist_by_writer(shared_data):
    dataset = load_mnist(shared_data, by_writer=True)
    assert dataset.train.inputs.shape == (60000, 28, 28)
    assert dataset.test.count == 10000
    sizes = np.bincount(np.unique(dataset.writers, return_inverse=True)[1])
    assert (sizes.size, sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)


@pytest.mark.long  # thirteen seconds of decompressing
def test_cifar10(shared_data):
    dataset = load_cifar10(shared_data)
    assert dataset.train.inputs.shape == (50000, 32, 32, 3)
    assert dataset.test.inputs.shape == (10000, 32, 32, 3)
    assert dataset.train.labels[:5].tolist() == [6, 9, 9, 4, 1]


def test_femnist_splits_by_writer(shared_data, monkeypatch):
    monkeypatch.setattr(images, "load_packed", cache(images.load_packed))  # for seconds each time
    dataset = load_femnist(shared_data)
    assert dataset.train.count + dataset.test.count == 97668
    assert np.unique(dataset.writers).size == 1372 - 137
    assert dataset.classes == 62
    large = load_femnist(shared_data, least=100)
    assert np.unique(large.writers, return_counts=True)[1].min() >= 100
