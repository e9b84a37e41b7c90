"""Sums of table[code] over a cohort: the reference's, and the per-client path's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lab.cohort.test_sums import KEY, factors
from quietbit.errors import InvalidParameter
from quietbit.kernel.fixed_point import FixedPoint
from quietbit.kernel.reference import ReferenceKernel
from quietbit_lab.cohort import codes as cohort_codes
from quietbit_lab.cohort.codes import reference_sums, sum_codes
from quietbit_lab.cohort.words import key_numbers, words_of
from unit.kernel.makers import GivenWords, make_sampler

SAMPLERS = {
    "one bit": make_sampler(2, 1, 1.0),
    "two bits": make_sampler(2, 2, 1.0),
    "three bits": make_sampler(2, 3, 3.0),
    "four bits, five levels": make_sampler(5, 4, 6.0, 0.8, -0.3, 1.3),
    "eight bits": make_sampler(2, 8, 1.0),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_sums_are_those_of_the_reference(name):
    sampler = SAMPLERS[name]
    left, right = factors(2, 5, 3, 300, 1.5)
    right[2, 7] = float("nan")
    table = np.random.default_rng(0).integers(-(2**40), 2**40, size=sampler.symbols)
    found = sum_codes(sampler, left, right, table=table, words_key=KEY)
    assert found.dtype == torch.int64
    wanted = reference_sums(sampler, left.numpy(), right.numpy(), table, key_numbers(KEY), [0, 1])
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_codes_are_those_of_the_per_client_path():
    """The mean of decoded alphabet values from payloads and from the cohort's sums is one and the same number."""
    sampler, clients = SAMPLERS["three bits"], 4
    left, right = factors(1, clients, 2, 70, 1.0)
    point = FixedPoint.of(np.linspace(-0.3, 1.3, 8), clients)
    total = np.zeros((2, 70), dtype=np.int64)
    for client in range(clients):
        primary, ties = words_of(key_numbers(KEY), "philox", 0, np.array([client]), 2, 70)
        update = left[0, client].double()[:, None] * right[client].double()[None, :]
        codes = ReferenceKernel().sample(sampler, update.numpy(), GivenWords(primary.reshape(-1), ties.reshape(-1)))
        total += point.table[codes]
    found = sum_codes(sampler, left, right, table=point.table, words_key=KEY)[0].numpy()
    np.testing.assert_array_equal(found, total)
    np.testing.assert_array_equal(point.mean(found, clients), point.mean(total, clients))


def test_threads_and_a_missing_numba_change_nothing(monkeypatch):
    sampler = SAMPLERS["two bits"]
    left, right = factors(1, 3, 2, 40, 1.0)
    alone = sum_codes(sampler, left, right, table=range(4), words_key=KEY)
    with monkeypatch.context() as patch:
        patch.setattr(cohort_codes, "FEW", 0)
        patch.setattr(torch, "get_num_threads", lambda: 2)
        assert torch.equal(sum_codes(sampler, left, right, table=range(4), words_key=KEY), alone)
    monkeypatch.setattr(cohort_codes, "find_spec", lambda name: None)
    assert torch.equal(sum_codes(sampler, left, right, table=range(4), words_key=KEY), alone)


def test_refusals():
    left, right = factors(1, 3, 2, 40, 1.0)
    with pytest.raises(InvalidParameter, match="shape of the table"):
        sum_codes(SAMPLERS["two bits"], left, right, table=range(5), words_key=KEY)
    with pytest.raises(InvalidParameter, match="scale must be"):
        sum_codes(make_sampler(2, 1, 1.0, 2.0**-100), left, right, table=range(2), words_key=KEY)
    with pytest.raises(InvalidParameter, match="sampler must be"):
        sum_codes("design", left, right, table=range(2), words_key=KEY)
    with pytest.raises(InvalidParameter, match="left must be"):
        sum_codes(SAMPLERS["two bits"], right, right, table=range(4), words_key=KEY)
