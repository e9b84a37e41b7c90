import numpy as np
import pytest
import torch

import quietbit
from federation.simulate.makers import small_dataset, small_problem
from quietbit.mechanism.ball import Norm
from quietbit_lab.task.batch import exact_float32
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.linear import LinearSoftmax
from quietbit_lab.task.linear_device import DeviceProblem, open_device
from refusals import refuses


@pytest.fixture
def data():
    return DeviceProblem(small_problem(), open_device("cpu"))


@pytest.mark.parametrize("norm", list(Norm))
def test_no_coordinate_has_a_larger_share(data, norm):
    inputs = np.concatenate([data.problem.dataset.train.inputs, np.ones((60, 1))], axis=1)
    wanted = (np.abs(inputs).max(axis=1) / np.linalg.norm(inputs, norm.order, axis=1)).max()
    errors = np.random.default_rng(1).dirichlet([0.2] * 3, size=10000) - [1, 0, 0]
    part = (np.abs(errors).max(axis=1) / np.linalg.norm(errors, norm.order, axis=1)).max()
    assert wanted * part <= data.share(norm) <= 1.002 * wanted * part


def test_a_partition_that_leaves_examples_out():
    dataset = small_dataset()
    part = LinearSoftmax(dataset, Partition(np.array([7, 3]), np.array([0, 1, 2])))
    data = DeviceProblem(part, open_device("cpu"))
    wanted = dataset.train.inputs[[7, 3]]
    np.testing.assert_array_equal(data.cohort(torch.tensor([0, 1]))[:, :12].numpy(), wanted)


def test_what_cannot_be_done_is_refused():
    with refuses("samples per client", 5):
        DeviceProblem(small_problem(samples=5), open_device("cpu"))
    bad = small_dataset()
    inputs = bad.train.inputs.copy()
    inputs[3, 3] = np.nan
    broken = Dataset("x", 3, Examples(inputs, bad.train.labels), bad.test)
    with refuses("features"):
        DeviceProblem(LinearSoftmax(broken, Partition.one_each(60)), open_device("cpu"))
    for name in ("gpu9", "meta"):
        with refuses("device", name):
            open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_sentence():
    with pytest.raises(quietbit.QuietbitError, match="no GPU"):
        open_device("cuda")


def test_short_formats_are_off_and_come_back():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with exact_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
