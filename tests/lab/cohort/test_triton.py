"""The cohort kernels in Triton's interpreter, or on a GPU where there is one: the reference's counts and sums."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from interpreter import interpret

if find_spec("triton") is None or find_spec("torch") is None:
    pytest.skip("the cohort kernels for GPUs need the packages triton and torch", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    interpret()

from lab.cohort.test_codes import SAMPLERS
from lab.cohort.test_sums import KEY, factors
from quietbit_lab.cohort import triton_host as host
from quietbit_lab.cohort.codes import reference_sums
from quietbit_lab.cohort.sums import BitLaw, reference_counts
from quietbit_lab.cohort.words import GENERATORS, key_numbers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic wraps around
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(array, kind=np.int32):
    return torch.tensor(np.asarray(array, dtype=kind), device=DEVICE)


def counted(law, left, right, reach, generator="philox", streams=(0,)):
    key = on_device(np.frombuffer(KEY, dtype="<i4"))
    given = (left.to(DEVICE), right.to(DEVICE), key, reach, generator, on_device(streams))
    return host.count_on_device(law, *given).cpu().numpy()


def expected(law, left, right, reach, generator="philox", streams=(0,)):
    return reference_counts(law, left.numpy(), right.numpy(), key_numbers(KEY), reach, generator, list(streams))


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("law", "reach"), [(BitLaw.LOGISTIC, 0.3), (BitLaw.LOGISTIC, 5.0), (BitLaw.NORMAL, 1.0),
                                            (BitLaw.NORMAL, 40.0), (BitLaw.LAPLACE, 1.0),
                                            (BitLaw.UNIFORM, 0.2)])  # fmt: skip
def test_counts_are_those_of_the_reference(law, reach, generator):
    """Two configurations, an odd number of clients, a last tile that is not full, a feature that is NaN."""
    left, right = factors(2, 6, 1, 300, reach)
    right[2, 7] = float("nan")
    found = counted(law, left, right, reach, generator, (5, 2))
    np.testing.assert_array_equal(found, expected(law, left, right, reach, generator, (5, 2)))


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 7])
def test_classes_and_splits(monkeypatch, classes):
    """All numbers of classes per thread; clients split over programs that do not get equally many."""
    monkeypatch.setattr(host, "_clients_per_program", lambda *given: 2)
    left, right = factors(1, 5, classes, 33, 1.0)
    np.testing.assert_array_equal(
        counted(BitLaw.LOGISTIC, left, right, 1.0), expected(BitLaw.LOGISTIC, left, right, 1.0)
    )


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_list_that_overflows_means_every_row_is_looked_at(monkeypatch, generator):
    monkeypatch.setattr(host, "ROOM", -(10**9))
    left, right = factors(1, 9, 1, 256, 20.0)
    found = counted(BitLaw.NORMAL, left, right, 20.0, generator)  # about one row in a hundred is undecided
    np.testing.assert_array_equal(found, expected(BitLaw.NORMAL, left, right, 20.0, generator))


def test_nothing_to_count():
    assert counted(BitLaw.NORMAL, torch.zeros(1, 0, 2), torch.zeros(0, 5), 1.0).shape == (1, 2, 5)


@pytest.mark.parametrize("name", ["one bit", "two bits", "three bits", "four bits, five levels"])
def test_sums_of_codes_are_those_of_the_reference(name):
    sampler = SAMPLERS[name]
    left, right = factors(1, 4, 2, 40, 1.5)
    right[2, 7] = float("nan")
    table = np.random.default_rng(0).integers(-(2**40), 2**40, size=sampler.symbols)
    key = on_device(np.frombuffer(KEY, dtype="<i4"))
    found = host.sum_on_device(sampler, left.to(DEVICE), right.to(DEVICE), table, key, on_device([3]))
    wanted = reference_sums(sampler, left.numpy(), right.numpy(), table, key_numbers(KEY), [3])
    np.testing.assert_array_equal(found.cpu().numpy(), wanted)


def test_splits_fill_the_chip():
    """One configuration of MNIST's shape is split into one wave, many configurations into several full ones."""
    assert host._clients_per_program(600, 8, 528, 1) == 10
    for groups in (36, 84, 252):
        each = host._clients_per_program(600, 8 * groups, 528, 1)
        waves = np.ceil(8 * groups * np.ceil(600 / each) / 528)
        assert waves * each < 1.06 * 600 * 8 * groups / 528
    assert host._clients_per_program(5, 1, 528, 4) == 4
    assert host._clients_per_program(1, 1, 528, 1) == 1
