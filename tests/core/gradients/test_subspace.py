"""Public directions: orthonormal, equal at both ends, never lengthening, and useful."""

from __future__ import annotations

import numpy as np
import pytest

from quietbit import Ball, Uplink, calibrate
from quietbit.errors import InvalidParameter
from quietbit.gradients.subspace import Subspace
from quietbit.kernel.rng import seeded_rng
from spaces import space_of_seed

DIMENSION = 400
RANK = 5


def gradients(count: int, seed: int = 0, noise: float = 0.02) -> np.ndarray:
    """People who do alike: gradients near five directions, with a common part."""
    shared = np.random.default_rng(99)
    factors = shared.normal(size=(RANK, DIMENSION)) / np.sqrt(DIMENSION)
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(count, RANK)) + np.array([2.0, 1.0, 0.0, 0.0, 0.0])
    return weights @ factors + noise * rng.normal(size=(count, DIMENSION)) / np.sqrt(DIMENSION)


@pytest.mark.parametrize("size", [1, RANK, 12])
def test_directions_are_orthonormal_and_coordinates_are_their_adjoint(size: int) -> None:
    space = Subspace.of_gradients(gradients(30), size)
    assert (space.size, space.dimension, space.bytes_once) == (
        size,
        DIMENSION,
        4 * size * DIMENSION,
    )
    rng = np.random.default_rng(1)
    update = rng.normal(size=DIMENSION)
    inside = rng.normal(size=size)
    assert space.coordinates(update) @ inside == pytest.approx(
        update @ space.lift(inside), rel=1e-9
    )
    assert space.coordinates(space.lift(inside)) == pytest.approx(inside, abs=1e-4)


def test_coordinates_are_never_longer_than_the_update() -> None:
    space = Subspace.of_gradients(gradients(30), RANK)
    updates = np.random.default_rng(2).normal(size=(200, DIMENSION))
    updates = np.concatenate([updates, space.directions, gradients(50, seed=3)])
    lengths = np.linalg.norm(space.coordinates(updates), axis=1)
    assert (lengths <= np.linalg.norm(updates, axis=1) * (1 + 1e-5)).all()


def test_leading_directions_hold_gradients_that_they_were_not_made_from() -> None:
    others = gradients(40, seed=4)
    assert Subspace.of_gradients(gradients(30), RANK).held(others) > 0.99
    assert space_of_seed(7, RANK, DIMENSION).held(others) < 0.2


def test_both_ends_make_the_same_directions() -> None:
    first = Subspace.of_gradients(gradients(30), 8)
    second = Subspace.of_gradients(
        gradients(30) * 3.0, 8
    )  # lengths of public gradients play no part
    assert first.directions == pytest.approx(second.directions, abs=1e-5)
    assert space_of_seed(3, 4, 50).digest == space_of_seed(3, 4, 50).digest
    assert space_of_seed(3, 4, 50).digest != space_of_seed(4, 4, 50).digest
    assert not first.directions.flags.writeable


def test_a_private_mean_in_the_subspace_is_nearer_than_one_of_all_numbers() -> None:
    """With equal epsilon and bytes, noise has 5 dimensions in place of 400."""
    updates = gradients(300, seed=5)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    mean = updates.mean(axis=0)
    space = Subspace.of_gradients(gradients(30), RANK)
    target = {"epsilon": 1.0, "delta": 1e-5, "releases": 1, "adjacency": "zero-out"}
    whole = Uplink(calibrate("vmvu", ball=Ball("l2", DIMENSION), **target).mechanism)
    few = Uplink(calibrate("vmvu", ball=Ball("l2", RANK), **target).mechanism)
    from_whole = whole.receive([whole.send(update) for update in updates])
    payloads = [few.send(space.coordinates(update)) for update in updates]
    assert len(payloads[0]) == 80
    from_few = space.lift(few.receive(payloads))
    assert np.linalg.norm(from_few - mean) < 0.3 * np.linalg.norm(from_whole - mean)


@pytest.mark.parametrize("stretch", [1.0, 50.0, -3e6])
def test_a_malicious_map_costs_accuracy_and_no_epsilon(stretch: float) -> None:
    """However a server scales a victim, the payload is that of an update of length 1."""
    found = calibrate(
        "vmvu", ball=Ball("l2", 1), epsilon=1.0, delta=0.0, releases=1, adjacency="zero-out"
    )
    assert found.guarantee.epsilon_upper <= 1.0
    uplink = Uplink(found.mechanism)
    space = Subspace(np.eye(1, DIMENSION))
    victim = np.zeros(DIMENSION)
    victim[0] = stretch
    clipped = np.array([np.sign(stretch)])
    for seed in range(20):
        sent = uplink.send(space.coordinates(victim), seeded_rng(seed))
        assert sent == uplink.send(clipped, seeded_rng(seed))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Subspace([[1.0, 1.0]]), "directions"),
        (lambda: Subspace([[1.0], [0.0]]), "directions"),
        (lambda: Subspace([[np.nan, 1.0]]), "directions"),
        (lambda: Subspace.of_gradients(np.ones((4, 9)), 2), "size"),
        (lambda: Subspace.of_gradients(np.zeros((4, 9)), 1), "gradients"),
        (lambda: Subspace.of_gradients([[np.inf, 0.0]], 1), "gradients"),
        (lambda: space_of_seed(0, 2, 4).coordinates(np.ones(5)), "update"),
        (lambda: space_of_seed(0, 2, 4).lift(np.ones(3)), "coordinates"),
    ],
)
def test_what_is_no_subspace_is_refused(make: object, name: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        make()  # type: ignore[operator]
    assert refusal.value.name == name


def test_directions_of_a_seed_and_lifted_means_are_the_same_on_every_machine() -> None:
    """No library chooses a rounding: the entries are roots, and sums go one by one."""
    space = space_of_seed(5, 3, 20)
    used = (space.directions != 0).sum(axis=0)
    assert used.tolist() == [1] * 20
    assert space.digest == "44dbdc52c96bd479"
    mean = np.array([0.1, -2.0, 3e-7])
    expected = np.zeros(20)
    for value, row in zip(mean, space.directions, strict=True):
        for place in range(20):
            expected[place] = expected[place] + value * float(row[place])
    assert space.lift(mean).tobytes() == expected.tobytes()
