"""Laws of prices: what is public is free, and what is around a mechanism costs what is inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core.mechanism.makers import MECHANISMS, ROUND, design
from quietbit import Adjacency, Ball, Gaussian, InterpolatedMVU, Norm
from quietbit.mechanism.abilities import summable
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.mechanism.projected import Projected, ProjectedSamples
from quietbit.mechanism.rotation import Rotation
from quietbit.mechanism.scouts import Scout, _answer_cost
from quietbit_lab.baseline.skellam import Skellam
from refusals import refuses

SMALL = Ball(Norm.L2, 16)
ONE_BIT, VECTOR = MECHANISMS["imvu one bit l2"], MECHANISMS["vmvu shared rows"]
CODES = Projected(InterpolatedMVU(design(), SMALL, clamp=True), ROUND, rows=5)
QUIET = Projected(Gaussian(SMALL, 1.0), ROUND)
BATCH = PoissonBatch(Gaussian(ROUND, 0.1), 20, 0.1)
SCOUTED = {name: found for name, found in MECHANISMS.items() if name.startswith("scouted")}

FREE: dict[str, tuple[Any, Any]] = {
    "a decoder": (ONE_BIT, evolve(ONE_BIT, decoder="alphabet")),
    "a rotation": (ONE_BIT, evolve(ONE_BIT, rotation=Rotation(64))),
    "another rotation": (ONE_BIT, evolve(ONE_BIT, rotation=Rotation(32, seed=9))),
    "an exact rotation": (ONE_BIT, evolve(ONE_BIT, rotation=Rotation(64, exact=True))),
    "kept floats": (QUIET, QUIET.inner),
    "kept codes": (CODES, CODES.inner),
    "kept integers": (Projected(Skellam(SMALL, 1.1), ROUND), Skellam(SMALL, 1.1)),
    "samples of kept floats": (ProjectedSamples(QUIET), QUIET.inner),
    "own rows of codes": (CODES, evolve(CODES, rows=None)),
    "own rows of a vector": (VECTOR, evolve(VECTOR, rows=None)),
    "the rows of a round": (CODES, CODES.for_round(b"run", 77)),
    "the vector's rows of a round": (VECTOR, VECTOR.for_round(b"run", 77)),
    "what a ledger notes": (CODES, CODES.priced_as),
    "a batch": (BATCH, BATCH.inner),
}


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", FREE)
def test_what_is_public_is_free(what: str, adjacency: Adjacency) -> None:
    one, other = FREE[what]
    assert one.privacy(adjacency) == other.privacy(adjacency)


# What its releases cost one of twenty samples, and how many of which are as dear.
BY_SAMPLE: dict[str, tuple[Any, int, Any]] = {
    "kept floats": (ProjectedSamples(QUIET), 1, QUIET.inner),
    "all samples": (PoissonBatch(ONE_BIT, 20, 1.0), 1, ONE_BIT),
    "steps of one bit": (LocalSteps(BATCH, 7, 0.3, 1), 7, BATCH),
    "steps of eight bits": (LocalSteps(BATCH, 7, 0.3, 8), 7, BATCH),
}


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("what", BY_SAMPLE)
def test_a_sample_pays_for_every_release_and_for_nothing_else(
    what: str, adjacency: Adjacency
) -> None:
    one, times, other = BY_SAMPLE[what]
    assert one.privacy(adjacency, 20) == other.privacy(adjacency, 20) * times


@pytest.mark.parametrize("name", ["kept", "vmvu seed", "mvu four levels l1"])
def test_who_cannot_price_a_sample_says_so(name: str) -> None:
    with refuses("mechanism", type(MECHANISMS[name]).__name__):
        MECHANISMS[name].privacy("zero-out", 10)


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_sum_is_never_worse_than_one_client(norm: Norm, adjacency: Adjacency) -> None:
    mechanism = InterpolatedMVU(design(2, 1, 0.5), Ball(norm, 30), 1.5, clamp=True)
    alone, together = mechanism.privacy(adjacency), mechanism.sum_privacy(80, adjacency)
    for alpha in (1.01, 2.5, 300.0):
        assert together.rdp(alpha) <= alone.rdp(alpha)
    assert together.pure_epsilon() == alone.pure_epsilon()
    assert (together * 5).epsilon(1e-5) < 0.4 * (alone * 5).epsilon(1e-5)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_sums_of_kept_and_rotated_codes_cost_what_sums_of_codes_cost(adjacency: Adjacency) -> None:
    inner = CODES.inner
    for same in (CODES, evolve(inner, rotation=Rotation(16, seed=3))):
        assert same.sum_privacy(50, adjacency) == inner.sum_privacy(50, adjacency)
    with refuses("mechanism", "Projected"):
        evolve(CODES, rows=None).sum_privacy(50, adjacency)
    with refuses("mechanism", "Gaussian"):
        summable(QUIET.inner)
    with refuses("mechanism", "InterpolatedMVU"):
        inner.kept_from_sum(np.zeros(16), 2)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("name", SCOUTED)
def test_one_price_for_updates_and_answers(name: str, adjacency: Adjacency) -> None:
    """No account of a release is below that of the inner update, nor below that of the answer."""
    mechanism = SCOUTED[name]
    alone, found = mechanism.inner.privacy(adjacency), mechanism.privacy(adjacency)
    answer = _answer_cost(mechanism.answer, adjacency)
    assert Scout(mechanism).priced_as == mechanism.priced_as
    assert Scout(mechanism).privacy(adjacency) == found == mechanism.priced_as.privacy(adjacency)
    assert found.pure_epsilon() == max(alone.pure_epsilon(), answer.pure_epsilon())
    for alpha in (1.5, 4.0, 40.0):
        assert found.rdp(alpha) >= max(alone.rdp(alpha), answer.rdp(alpha)) * (1 - 1e-12)
    either = (found * 3).epsilon(1e-5) * (1 + 1e-9)
    for answers in range(4):
        assert either >= (alone * (3 - answers) + answer.like(alone) * answers).epsilon(1e-5)
