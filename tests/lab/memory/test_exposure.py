"""Exposure: uniform without memory, as large as the alternatives allow with it."""

import numpy as np
import pytest

from quietbit_lab.memory import exposures
from refusals import refuses


def test_a_secret_that_beats_all_others_has_the_largest_exposure() -> None:
    others = np.linspace(1.0, 2.0, 1023)
    measured = exposures([0.5, 3.0], others)
    assert measured.ranks.tolist() == [1, 1024]
    assert measured.bits.tolist() == [10.0, 0.0]
    assert measured.most == 10.0


def test_a_tie_counts_for_memory() -> None:
    assert exposures([1.0], [1.0, 1.0, 2.0]).ranks.tolist() == [1]


def test_without_memory_ranks_are_uniform_and_the_mean_is_the_known_one() -> None:
    rng = np.random.default_rng(1)
    measured = exposures(rng.normal(size=2_000), rng.normal(size=20_000))
    # log2(1/U) has mean 1/ln 2 and the same deviation: six of them in a mean of 2,000
    assert abs(measured.mean - 1 / np.log(2)) < 6 / np.log(2) / np.sqrt(2_000)
    assert measured.chance > 1e-9


def test_a_little_memory_shows_in_many_canaries() -> None:
    rng = np.random.default_rng(2)
    measured = exposures(rng.normal(size=500) - 0.5, rng.normal(size=10_000))
    assert measured.chance < 1e-9


@pytest.mark.parametrize(
    ("canaries", "alternatives", "name"),
    [
        ([], [1.0], "canaries"),
        ([1.0], [], "alternatives"),
        ([np.nan], [1.0], "losses"),
        ([1.0], [np.inf], "losses"),
    ],
)
def test_what_has_no_rank_is_refused(
    canaries: list[float], alternatives: list[float], name: str
) -> None:
    with refuses(name):
        exposures(canaries, alternatives)
