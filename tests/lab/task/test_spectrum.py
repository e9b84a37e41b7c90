"""What public gradients say about the number of directions."""

from __future__ import annotations

import numpy as np
import pytest

from core.gradients.test_subspace import RANK, gradients
from quietbit_lab.task.spectrum import best_size
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


@pytest.mark.parametrize("gradients", [np.ones((1, 4)), np.ones(4), [[np.inf, 0.0]] * 2])
def test_what_is_no_list_of_gradients_is_refused(gradients: object) -> None:
    with refuses("gradients"):
        best_size(gradients, squared_error=1.0, clients=1, clip=1.0)
