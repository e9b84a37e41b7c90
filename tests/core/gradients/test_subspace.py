"""Public directions: orthonormal, equal at both ends, never lengthening, and useful."""

import numpy as np
import pytest

from quietbit import Ball, Uplink, calibrate
from quietbit.gradients.subspace import Subspace
from quietbit.kernel.rng import seeded_rng
from refusals import refuses
from spaces import space_of_seed

DIMENSION = 400
RANK = 5


def gradients(count, seed=0, noise=0.02):
    """People who do alike: gradients near five directions, with a common part."""
    shared = np.random.default_rng(99)
    factors = shared.normal(size=(RANK, DIMENSION)) / np.sqrt(DIMENSION)
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(count, RANK)) + np.array([2.0, 1.0, 0.0, 0.0, 0.0])
    return weights @ factors + noise * rng.normal(size=(count, DIMENSION)) / np.sqrt(DIMENSION)


@pytest.mark.parametrize("size", [1, RANK, 12])
def test_directions_are_orthonormal_and_coordinates_are_their_adjoint(size):
    """So coordinates are never longer than the update."""
    space = Subspace.of_gradients(gradients(30), size)
    assert (space.size, space.dimension) == (size, DIMENSION)
    assert space.bytes_once == 4 * size * DIMENSION
    rng = np.random.default_rng(1)
    updates = np.concatenate([rng.normal(size=(200, DIMENSION)), space.directions])
    inside = rng.normal(size=size)
    found = space.coordinates(updates)
    assert found @ inside == pytest.approx(updates @ space.lift(inside), rel=1e-9, abs=1e-12)
    assert space.coordinates(space.lift(inside)) == pytest.approx(inside, abs=1e-4)
    lengths = np.linalg.norm(updates, axis=1) * (1 + 1e-5)
    assert (np.linalg.norm(found, axis=1) <= lengths).all()


def test_leading_directions_hold_gradients_that_they_were_not_made_from():
    others = gradients(40, seed=4)
    assert Subspace.of_gradients(gradients(30), RANK).held(others) > 0.99
    assert space_of_seed(7, RANK, DIMENSION).held(others) < 0.2


def test_both_ends_make_the_same_directions():
    """Lengths of public gradients play no part."""
    first, second = (Subspace.of_gradients(gradients(30) * length, 8) for length in (1.0, 3.0))
    assert first.directions == pytest.approx(second.directions, abs=1e-5)
    assert not first.directions.flags.writeable
    digests = [space_of_seed(seed, 4, 50).digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_a_private_mean_in_the_subspace_is_nearer_than_one_of_all_numbers():
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
def test_a_malicious_map_costs_accuracy_and_no_epsilon(stretch):
    """However a server scales a victim, the payload is that of an update of length 1."""
    target = {"epsilon": 1.0, "delta": 0.0, "releases": 1, "adjacency": "zero-out"}
    found = calibrate("vmvu", ball=Ball("l2", 1), **target)
    assert found.guarantee.epsilon_upper <= 1.0
    uplink, space = Uplink(found.mechanism), Subspace(np.eye(1, DIMENSION))
    victim = stretch * np.eye(1, DIMENSION)[0]
    for seed in range(20):
        sent = uplink.send(space.coordinates(victim), seeded_rng(seed))
        assert sent == uplink.send(np.sign([stretch]), seeded_rng(seed))


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
def test_what_is_no_subspace_is_refused(make, name):
    with refuses(name):
        make()


def test_directions_of_a_seed_and_lifted_means_are_the_same_on_every_machine():
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
