"""Poisoned clients: bounds held against a real search of seeds, and against what the server
decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from core.statistical.kit import seed
from quietbit import Ball, Gaussian, Norm, Uplink, calibrate
from quietbit.errors import Outlier
from quietbit.kernel.select import default_kernel
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.target import Trust
from quietbit.wire.payload import build
from quietbit_lab.auditor.poison import moved, poisoned, seed_maximum
from refusals import refuses

KERNEL, WORK, SIZE = default_kernel(), 16, 64
TARGET: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "adjacency": "replace-one", "releases": 1}


def found(word: str, size: int = SIZE, **choices: Any) -> Any:
    return calibrate(word, ball=Ball(Norm.L2, size), **TARGET, **choices).mechanism


def decoded(mechanism: Any, body: bytes) -> Any:
    """Return what a server makes of a payload that somebody wrote by hand."""
    uplink = Uplink(mechanism)

    def write(out: Any) -> None:
        out[:] = np.frombuffer(body, dtype=np.uint8)

    return uplink.receive([build(uplink.header, write)])


@pytest.fixture(scope="module")
def draws() -> tuple[list[bytes], Any]:
    """2^16 seeds of an attacker's, and the normals that they stand for."""
    rng = np.random.default_rng(seed(11))
    seeds = [bytes(rng.bytes(16)) for _ in range(2**WORK)]
    return seeds, np.stack([KERNEL.normals(one, SIZE) for one in seeds])


@pytest.mark.parametrize("dimensions", [1, 2, 8, 64])
def test_the_best_of_many_seeds_is_where_the_bound_says(
    draws: tuple[list[bytes], Any], dimensions: int
) -> None:
    """Below work - 5 with probability e^-32, above work + 27 with 2^-27: in a subspace as along
    a direction.
    """
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, dimensions)))[0]
    parts = draws[1] @ basis
    reached = parts[:, 0] if dimensions == 1 else np.linalg.norm(parts, axis=1)
    best = float(reached.max())
    assert seed_maximum(WORK - 5, dimensions) < best < seed_maximum(WORK + 27, dimensions)
    assert float(reached[: 2**5].max()) < best  # a weaker search reaches less


def searched(draws: tuple[list[bytes], Any], mechanism: Any, nonce: bytes, aim: Any) -> float:
    """How far the best seed moves what the server decodes along the aim: by its score over the
    gain, and further the fewer rows are kept.
    """
    seeds, normals = draws
    turned = KERNEL.rotate(aim, mechanism.rotation_seed, kind=np.float64)
    scores = normals @ turned[KERNEL.rows(nonce, SIZE, mechanism.padded)]
    payload = nonce[: mechanism.nonce_size] + seeds[int(scores.argmax())]
    along = float(decoded(mechanism, payload) @ aim)
    further = (mechanism.padded / mechanism.keep) ** 0.5 / mechanism.profile.gain_lower
    assert along == pytest.approx(float(scores.max()) * further, rel=1e-3)
    return along


def test_an_attacker_who_searches_moves_the_server_as_far_as_stated(
    draws: tuple[list[bytes], Any],
) -> None:
    """Through the server's own decoder, own rows and all: nonce and best seed, along a direction
    of the attacker's.
    """
    mechanism = found("vmvu", coordinates=SIZE)
    assert mechanism.keep == mechanism.padded
    aim = np.random.default_rng(2).normal(size=SIZE)
    along = searched(draws, mechanism, bytes(mechanism.nonce_size), aim / np.linalg.norm(aim))
    assert poisoned(mechanism, WORK - 5) < along < poisoned(mechanism, WORK + 27)


@pytest.mark.parametrize("word", ["imvu", "gaussian", "sign", "skellam", "mvu"])
def test_no_payload_that_the_server_takes_is_longer_than_stated(word: str) -> None:
    mechanism, rng = found(word), np.random.default_rng(seed(7))
    most = poisoned(mechanism)
    longest = 0.0
    for _ in range(200):
        body = rng.bytes(mechanism.layout.size)
        try:
            vector = decoded(mechanism, body) / mechanism.error().gain
        except ValueError:  # padding that is not zero, or floats that no client could have sent
            continue
        longest = max(longest, float(np.linalg.norm(vector)))
    assert longest <= most * 1.002
    honest = (
        Uplink(mechanism).receive([Uplink(mechanism).send(np.ones(SIZE))]) / mechanism.error().gain
    )
    assert np.linalg.norm(honest) <= most * (1 + 1e-6)  # rotated back in floats


def test_floats_just_below_the_bound_are_taken_and_just_above_refused() -> None:
    mechanism = found("gaussian")
    each = poisoned(mechanism) / SIZE**0.5
    vector = decoded(mechanism, np.full(SIZE, each * 0.999, dtype="<f4").tobytes())
    assert np.linalg.norm(vector) == pytest.approx(each * 0.999 * SIZE**0.5, rel=1e-4)
    with pytest.raises(ValueError, match="length of the payload"):
        decoded(mechanism, np.full(SIZE, each * 1.01, dtype="<f4").tobytes())


@pytest.mark.parametrize("rows", [None, "shared"])
def test_a_search_along_rows_of_the_rotation_reaches_as_far_as_stated(
    draws: tuple[list[bytes], Any], rows: str
) -> None:
    """The rotation is public: along each row that is kept, and between two of them, 8 times as
    far as on all rows.
    """
    mechanism = found("vmvu", 4096, coordinates=SIZE, **({} if rows is None else {"rows": rows}))
    if rows is not None:
        mechanism = mechanism.for_round(b"run", 1)
    nonce = mechanism.nonce(None) if rows is not None else bytes(mechanism.nonce_size)
    places = KERNEL.rows(nonce, SIZE, mechanism.padded)
    reached = []
    for among in ([0], [5], [63], [7, 40]):
        aim = np.zeros(mechanism.padded)
        aim[places[among]] = 1 / len(among) ** 0.5
        KERNEL.rotate_back(aim, mechanism.rotation_seed)
        reached.append(searched(draws, mechanism, nonce, aim))
    # what a random direction would reach
    assert min(reached) > 3 * seed_maximum(WORK) / mechanism.profile.gain_lower
    assert poisoned(mechanism, WORK - 5) < min(reached)
    assert max(reached) < poisoned(mechanism, WORK + 27)


def test_the_rows_of_few_codes_are_a_direction_too() -> None:
    """All bits alike, on 64 of 4,096 rows: decoded along the rows themselves."""
    mechanism = found("imvu", 4096, coordinates=SIZE)
    body = bytes(mechanism.layout.size - SIZE // 8) + bytes([255]) * (SIZE // 8)
    vector = decoded(mechanism, body)
    assert float(np.linalg.norm(vector)) <= poisoned(mechanism) * (1 + 1e-6)
    assert float(np.linalg.norm(vector)) >= 0.9 * poisoned(mechanism)


def test_a_share_of_clients_moves_a_mean_by_its_share_unless_masks_hide_it() -> None:
    mechanism = found("imvu")
    one = poisoned(mechanism)
    assert moved(mechanism, 0.01, Trust.LOCAL) == pytest.approx(0.01 * one)
    assert moved(mechanism, 0.01, Trust.CENTRAL) == 0.01
    assert moved(mechanism, 0.01, Trust.SECURE_AGGREGATION) == one
    with refuses("malicious", 1.5):
        moved(mechanism, 1.5, Trust.LOCAL)


def test_several_steps_reach_as_far_as_a_server_takes_their_difference() -> None:
    site = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, SIZE), 0.01), 10, 0.5), 5, 0.1, 1)
    clips = poisoned(site) * 5 * 0.1
    scale = np.float32(0.999 * site.honest_length / np.sqrt(SIZE))
    longest = decoded(site, scale.tobytes() + bytes([255]) * (site.layout.size - 4))
    assert 0.99 * clips <= np.linalg.norm(longest) <= clips
    finer = evolve(site, bits=4)
    assert poisoned(finer) < poisoned(site)
    with pytest.raises(Outlier, match="length of the payload"):
        decoded(finer, scale.tobytes() + bytes([255]) * (finer.layout.size - 4))
