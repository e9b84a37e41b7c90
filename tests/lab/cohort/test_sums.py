"""Counting bits over a cohort: the reference's counts, the per-client path's codes, and the right frequencies."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from quietbit.errors import InvalidParameter
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.sampler import Sampler
from quietbit_lab.cohort import sums as cohort
from quietbit_lab.cohort.sums import BitLaw, count_ones, reference_counts
from quietbit_lab.cohort.words import GENERATORS, key_numbers, words_of
from statistical.kit import FALSE_ALARM, StatisticalFailure, assert_binomial, seed
from unit.kernel.makers import GivenWords

KEY = bytes(range(7, 39))


def factors(groups, clients, classes, features, reach, start=0):
    """Products of all sizes up to the reach and beyond, with zeros among both factors."""
    rng = np.random.default_rng(start)
    left = (rng.normal(size=(groups, clients, classes)) * reach / 2).astype(np.float32)
    right = rng.normal(size=(clients, features)).astype(np.float32)
    left.reshape(-1)[::5], right.reshape(-1)[::7] = 0.0, 0.0
    return torch.tensor(left), torch.tensor(right)


def expected(law, left, right, reach, generator="philox", streams=None):
    chosen = list(range(left.shape[0])) if streams is None else streams
    return reference_counts(law, left.numpy(), right.numpy(), key_numbers(KEY), reach, generator, chosen)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("law", BitLaw)
@pytest.mark.parametrize("reach", [0.3, 1.0, 5.0, 300.0])
def test_counts_are_those_of_the_reference(law, reach, generator):
    left, right = factors(2, 9, 3, 777, reach)
    found = count_ones(law, left, right, words_key=KEY, reach=reach, generator=generator)
    assert found.dtype == torch.int32
    np.testing.assert_array_equal(found.numpy(), expected(law, left, right, reach, generator))


@pytest.mark.parametrize(
    ("groups", "clients", "classes", "features"), [(1, 1, 1, 1), (1, 5, 1, 255), (3, 2, 7, 257), (2, 4, 2, 31)]
)
def test_small_and_odd_shapes(groups, clients, classes, features):
    left, right = factors(groups, clients, classes, features, 1.0)
    found = count_ones(BitLaw.LOGISTIC, left, right, words_key=KEY, reach=1.0).numpy()
    np.testing.assert_array_equal(found, expected(BitLaw.LOGISTIC, left, right, 1.0))
    other = count_ones(BitLaw.LOGISTIC, left, right, words_key=KEY[::-1], reach=1.0).numpy()
    assert features == 1 or not np.array_equal(found, other)


def test_more_clients_than_a_short_count_holds():
    left, right = torch.full((1, 70001, 1), 0.9), torch.ones((70001, 2))
    found = count_ones(BitLaw.LAPLACE, left, right, words_key=KEY, reach=1.0).numpy()
    np.testing.assert_array_equal(found, expected(BitLaw.LAPLACE, left, right, 1.0))


def test_nothing_to_count():
    for shape in ((0, 3, 2), (1, 0, 2), (1, 3, 0)):
        found = count_ones(BitLaw.NORMAL, torch.zeros(shape), torch.zeros((shape[1], 5)), words_key=KEY, reach=1.0)
        assert tuple(found.shape) == (shape[0], shape[2], 5)
        assert not found.any()


def test_more_than_one_thread_changes_nothing(monkeypatch):
    left, right = factors(2, 5, 3, 300, 1.0)
    alone = count_ones(BitLaw.NORMAL, left, right, words_key=KEY, reach=1.0)
    monkeypatch.setattr(cohort, "FEW", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(count_ones(BitLaw.NORMAL, left, right, words_key=KEY, reach=1.0), alone)


def test_without_numba_the_reference_counts(monkeypatch):
    left, right = factors(1, 3, 2, 40, 1.0)
    with_numba = count_ones(BitLaw.LAPLACE, left, right, words_key=KEY, reach=1.0)
    monkeypatch.setattr(cohort, "find_spec", lambda name: None)
    assert torch.equal(count_ones(BitLaw.LAPLACE, left, right, words_key=KEY, reach=1.0), with_numba)


def test_beyond_the_reach_nan_and_infinity_count_as_its_ends():
    left = torch.tensor([[[1.0], [1.0], [1.0], [1.0], [1e30]]])
    right = torch.tensor([[9.0], [-9.0], [float("inf")], [float("nan")], [1e30]]).expand(5, 70).contiguous()
    ends = torch.tensor([[0.5], [-0.5], [0.5], [-0.5], [0.5]]).expand(5, 70).contiguous()
    for law in BitLaw:
        found = count_ones(law, left, right, words_key=KEY, reach=0.5)
        assert torch.equal(found, count_ones(law, torch.ones(1, 5, 1), ends, words_key=KEY, reach=0.5))


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_logistic_law_draws_the_codes_of_the_per_client_path(generator):
    """One-bit I-MVU by the reference kernel, client by client, from the same words: the counts are its codes' sums."""
    left, right = factors(1, 6, 2, 300, 2.0)
    zero, slope = np.zeros((1, 2)), np.array([[0.0, 1.0]])
    sampler = Sampler(1, 2, 1.0, 0.5 - 2.0, 0.5 + 2.0, zero, slope, zero, zero)
    total = np.zeros((2, 300), dtype=np.int64)
    for client in range(6):
        primary, ties = words_of(key_numbers(KEY), generator, 0, np.array([client]), 2, 300)
        update = left[0, client].double()[:, None] * right[client].double()[None, :]
        words = GivenWords(primary.reshape(-1), ties.reshape(-1))
        total += ReferenceKernel().sample(sampler, update.numpy(), words)
    found = count_ones(BitLaw.LOGISTIC, left, right, words_key=KEY, reach=2.0, generator=generator)
    np.testing.assert_array_equal(found[0].numpy(), total)


def test_streams_are_addresses_of_words():
    left, right = factors(3, 4, 2, 90, 1.0)
    chosen = torch.tensor([5, 0, 5], dtype=torch.int32)
    found = count_ones(BitLaw.NORMAL, left, right, words_key=KEY, reach=1.0, streams=chosen)
    np.testing.assert_array_equal(found.numpy(), expected(BitLaw.NORMAL, left, right, 1.0, streams=[5, 0, 5]))
    same = left[:1].expand(3, 4, 2)
    found = count_ones(BitLaw.NORMAL, same, right, words_key=KEY, reach=1.0, streams=chosen)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("generator", GENERATORS)
def test_no_word_is_shared(generator):
    """All primary-and-tie pairs of a small cohort differ: 64-bit words collide with probability below 1e-11."""
    drawn = [words_of(key_numbers(KEY), generator, stream, np.arange(9), 3, 300) for stream in (0, 1, 300)]
    words = np.concatenate([((primary << 48) | ties).reshape(-1) for primary, ties in drawn])
    assert np.unique(words).size == words.size
    assert min(int(primary.min()) for primary, _ in drawn) >= 0
    assert max(int(ties.max()) for _, ties in drawn) < 2**48


@pytest.mark.parametrize("law", BitLaw)
def test_counts_are_binomial(law):
    """False alarms below 1e-9; a wrong law and a bit that is not drawn are caught."""
    t, clients = [-0.9, 0.0, 0.2, 0.7], 30000
    left = torch.tensor(t, dtype=torch.float32).expand(1, clients, 4).contiguous()
    key = hashlib.sha256(str(seed(3)).encode()).digest()
    counts = count_ones(law, left, torch.ones(clients, 67), words_key=key, reach=1.0)[0].numpy()
    chance = {
        BitLaw.LOGISTIC: lambda x: 1 / (1 + math.exp(-x)),
        BitLaw.NORMAL: lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
        BitLaw.LAPLACE: lambda x: 1 - math.exp(-x) / 2 if x >= 0 else math.exp(x) / 2,
        BitLaw.UNIFORM: lambda x: (1 + x) / 2,
    }
    laws = {name: np.array([[f(float(np.float32(x)))] for x in t]) for name, f in chance.items()}
    assert_binomial(counts, clients, laws[law], FALSE_ALARM)
    assert_binomial(counts.sum(axis=1, keepdims=True), 67 * clients, laws[law], FALSE_ALARM)
    for other in BitLaw:
        if other is not law:
            with pytest.raises(StatisticalFailure):
                assert_binomial(counts, clients, laws[other], FALSE_ALARM)
    counts[:, -1] = clients
    with pytest.raises(StatisticalFailure):
        assert_binomial(counts, clients, laws[law], FALSE_ALARM)


def test_keys_may_be_tensors():
    left, right = factors(1, 3, 2, 40, 1.0)
    key = torch.tensor(np.frombuffer(KEY, dtype="<i4").astype(np.int32))
    first = count_ones(BitLaw.LOGISTIC, left, right, words_key=key, reach=1.0)
    assert torch.equal(first, count_ones(BitLaw.LOGISTIC, left, right, words_key=KEY, reach=1.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"law": "logistic"}, "law must be a BitLaw"),
        ({"left": torch.zeros(1, 3, 2).double()}, "left must be a float32 tensor with 3 axes"),
        ({"right": torch.zeros(3)}, "right must be a float32 tensor with 2 axes"),
        ({"right": torch.zeros(4, 5)}, "clients of right must be the 3 of left"),
        ({"reach": 0.0}, "reach must be"),
        ({"reach": float("nan")}, "reach must be"),
        ({"reach": 2000.0}, "reach must be"),
        ({"words_key": b"short"}, "words_key must be 32 bytes"),
        ({"words_key": torch.zeros(8)}, "words_key must be 32 bytes"),
        ({"generator": "mt19937"}, "generator must be one of"),
        ({"streams": [0]}, "streams must be an int32 tensor of 1"),
        ({"streams": torch.tensor([-1], dtype=torch.int32)}, "streams must be from 0"),
    ],
)
def test_refusals(change, said):
    given = {"law": BitLaw.NORMAL, "left": torch.zeros(1, 3, 2), "right": torch.zeros(3, 5), "words_key": KEY}
    given |= {"reach": 1.0} | change
    with pytest.raises(InvalidParameter, match=said):
        count_ones(given.pop("law"), given.pop("left"), given.pop("right"), **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_one_sentence():
    """In a process of its own, because other tests switch Triton's interpreter on."""
    code = (
        "import torch\n"
        "from quietbit.errors import MissingDependency\n"
        "from quietbit_lab.cohort.sums import BitLaw\n"
        "from quietbit_lab.cohort.triton_host import count_on_device\n"
        "given = torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.zeros(8), 1.0, 'philox', torch.zeros(1)\n"
        "try:\n    count_on_device(BitLaw.NORMAL, *given)\nexcept MissingDependency as error:\n    print(error)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert run.stdout in (
        "The cohort kernel for GPUs needs an NVIDIA GPU, and torch sees none here.\n",
        "This needs the package triton, which is not installed: pip install '.[gpu]' in a checkout of quietbit.\n",
    )
