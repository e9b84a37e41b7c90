"""Means drawn from the mechanisms' laws against means of real payloads."""

import numpy as np
import pytest

from quietbit import Ball, calibrate
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.rotation import Rotation
from quietbit.wire.uplink import Uplink
from quietbit_lab.cohort.means import unit_mean
from quietbit_lab.cohort.releases import rotated, rotated_back, vector_mean

torch = pytest.importorskip("torch")
DIMENSION, CLIENTS, DRAWS, COHORTS = 24, 8, 4000, 60
Z = 6.11  # two-sided 1e-9 for one normal statistic
WORDS = {"epsilon": 3.0, "delta": 1e-5, "adjacency": "zero-out", "releases": 1}


def mechanism_of(name, **more):
    return calibrate(name, ball=Ball("l2", DIMENSION), **WORDS, **more).mechanism


def rows_of(count=CLIENTS, seed=0):
    """Updates around one direction, half of them well inside the ball."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, DIMENSION)) + 2 * np.eye(DIMENSION)[0]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::2] *= 0.4
    return (0.999 * rows).astype(np.float32)


def drawn(name, mechanism, rows, draws, seed):
    """Means of ``draws`` cohorts, all at once: (draws, d)."""
    generator = torch.Generator().manual_seed(seed)
    many = torch.from_numpy(rows).expand(draws, *rows.shape)
    if name == "vmvu":
        return vector_mean(many, mechanism, generator).numpy()
    return unit_mean(many, mechanism, generator).numpy()


def sent(mechanism, rows, cohorts, seed):
    """The same through payloads: (cohorts, d)."""
    uplink, words = Uplink(mechanism), seeded_rng(seed)
    found = []
    for _ in range(cohorts):
        payloads = [uplink.send(row, rng=words) for row in rows]
        found.append(np.asarray(uplink.receive(payloads)))
    return np.stack(found)


def apart(one, other):
    """Return the largest difference of first and second moments along four directions, in standard
    errors.
    """
    worst, size = 0.0, one.shape[1]
    for axis in np.vstack([np.eye(size)[[0, size // 3, -1]], np.ones(size) / np.sqrt(size)]):
        for power in (1, 2):
            a, b = (one @ axis) ** power, (other @ axis) ** power
            spread = np.sqrt(a.var() / a.size + b.var() / b.size)
            worst = max(worst, abs(a.mean() - b.mean()) / max(spread, 1e-12))
    return worst


@pytest.mark.parametrize("name", ["vmvu", "imvu", "imvu as in the paper", "gaussian", "sign"])
def test_means_have_the_moments_of_real_payloads(name):
    """Eight statistics a mechanism; each beyond Z by chance once in a billion."""
    more = {"rotate": False} if name.endswith("paper") else {}
    mechanism, rows = mechanism_of(name.split()[0], **more), rows_of()
    law = drawn(name, mechanism, rows, DRAWS, 1)
    real = sent(mechanism, rows, COHORTS, 2)
    if name == "sign":
        real = real / mechanism.slope_at_zero
    assert apart(law, real) < Z
    assert apart(law, real * 2 + 0.5) > Z  # the test can fail


@pytest.mark.parametrize(("size", "block"), [(64, 16), (75, 16), (9, 8)])
def test_rows_are_rotated_as_updates_are(size, block):
    """Blocks that fit and blocks that overlap, against the reference kernel."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(3, size)).astype(np.float32))
    turn = Rotation(block, seed=5)
    found = rotated(rows, turn)
    expected = [ReferenceKernel().rotate([row], 5, block, factor=1.0) for row in rows.numpy()]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=2e-6)
    np.testing.assert_allclose(rotated_back(found, turn).numpy(), rows.numpy(), atol=2e-6)
