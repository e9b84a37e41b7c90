"""What public gradients say about the number of directions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from core.gradients.test_subspace import DIMENSION, RANK, gradients
from quietbit_lab.task.spectrum import best_size, spectrum
from refusals import refuses


def test_the_best_size_follows_the_noise() -> None:
    public = gradients(60)
    quiet = best_size(public, squared_error=1e-4, clients=10_000, clip=3.0)
    loud = best_size(public, squared_error=1.7, clients=20, clip=3.0)
    assert loud <= 2
    assert quiet >= RANK
    assert (
        best_size(
            np.random.default_rng(1).normal(size=(8, 20)), squared_error=0.0, clients=5, clip=9.0
        )
        == 20
    )


def test_a_spectrum_shows_what_each_number_of_directions_buys() -> None:
    rows = spectrum(gradients(60), noise=2.0, clip=1.0)
    assert [row.directions for row in rows] == [1, 2, 4, 8, 16, DIMENSION]
    assert all(before.held < after.held + 1e-3 for before, after in itertools.pairwise(rows))
    assert all(before.noise < after.noise for before, after in itertools.pairwise(rows))
    assert (rows[-1].held, rows[-1].missed, rows[-1].error) == (1.0, 0.0, 2.0)
    best = min(rows, key=lambda row: row.error).directions
    squared = 2.0**2 / DIMENSION * 100
    found = best_size(gradients(60), squared_error=squared, clients=100, clip=1.0)
    assert found == best


@pytest.mark.parametrize("gradients", [np.ones((1, 4)), np.ones(4), [[np.inf, 0.0]] * 2])
def test_what_is_no_list_of_gradients_is_refused(gradients: object) -> None:
    with refuses("gradients"):
        best_size(gradients, squared_error=1.0, clients=1, clip=1.0)
