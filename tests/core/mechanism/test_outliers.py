"""Outliers: tails computed exactly, honest clients at the clip, and payloads that somebody
wrote.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.mechanism.makers import MECHANISMS, WIDTH
from quietbit import Ball, Gaussian, Norm, Uplink
from quietbit.errors import Outlier
from quietbit.federation.collectors import Plain, Singles
from quietbit.federation.messages import Asked, Reply
from quietbit.federation.part import Scope
from quietbit.federation.record import Counts
from quietbit.federation.round import Round
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.accumulate import normal_length_upper
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.wire.payload import Framed, build
from quietbit_lab.baseline.noise import exponential_length_upper
from quietbit_lab.baseline.skellam import Skellam

RISK = 2.0**-40
TESTED = sorted(name for name, found in MECHANISMS.items() if math.isfinite(found.honest_length))


def payload(mechanism: Any, body: bytes) -> bytes:
    """Return a payload that somebody wrote by hand."""

    def write(out: Any) -> None:
        out[:] = np.frombuffer(body, dtype=np.uint8)

    return build(Uplink(mechanism).header, write)


@pytest.mark.parametrize("dimension", [1, 7, 1000, 200_000])
@pytest.mark.parametrize("ratio", [1e-3, 0.3, 5.0])
def test_an_honest_client_at_the_clip_is_longer_with_the_stated_chance_at_most(
    dimension: int, ratio: float
) -> None:
    """The chance is scipy's noncentral chi-square's and gamma's; the bound is not far beyond its
    quantile.
    """
    loose = 1.7 if dimension == 1 else 1.3
    length = normal_length_upper(dimension, ratio)
    law = stats.ncx2(dimension, (1.0 / ratio) ** 2)
    assert law.sf((length / ratio) ** 2) <= RISK
    assert law.sf((length / ratio / loose) ** 2) > RISK  # it can fail
    waits = stats.gamma(dimension)
    both = exponential_length_upper(dimension, ratio)
    assert waits.sf((both - 1.0) / ratio) <= RISK
    assert waits.sf((both - 1.0) / ratio / loose) > RISK


@pytest.mark.parametrize("multiplier", [0.3, 3.0])
def test_skellam_noise_is_longer_with_the_stated_chance_at_most(multiplier: float) -> None:
    """Of eight coordinates, each rounded away from zero, by adding up the exact law of every
    square.
    """
    mechanism = Skellam(Ball(Norm.L2, 8), multiplier, bits=6)
    each = math.ceil(mechanism.scale / math.sqrt(8))
    law: dict[int, float] = {0: 1.0}
    places = np.arange(-400, 401)
    one = stats.skellam.pmf(places, mechanism.noise_variance / 2, mechanism.noise_variance / 2)
    squares: Counter[int] = Counter()
    for noise, chance in zip(places.tolist(), one, strict=True):
        squares[((each + noise + 32) % 64 - 32) ** 2] += float(chance)
    for _ in range(8):
        total: Counter[int] = Counter()
        for have, chance in law.items():
            for more, step in squares.items():
                total[have + more] += chance * step
        law = total
    honest = (mechanism.honest_length * mechanism.scale) ** 2
    assert sum(chance for square, chance in law.items() if square > honest) <= RISK
    assert sum(chance for square, chance in law.items() if square > honest / 16) > RISK


@pytest.mark.parametrize("name", TESTED)
def test_honest_clients_are_taken_in(name: str) -> None:
    mechanism = MECHANISMS[name]
    uplink, rng = Uplink(mechanism), seeded_rng(5)
    update = np.full(WIDTH, 1e3)  # far outside of any clip: it is brought to it
    found = uplink.collect([uplink.send(update, rng) for _ in range(50)], on_error="skip")
    assert (found.count, found.refused) == (50, 0)
    one = uplink.receive([uplink.send(update, rng)])
    assert np.linalg.norm(one, mechanism.ball.norm.order) <= mechanism.honest_length


def test_where_lengths_differ_there_is_a_test() -> None:
    """And nowhere else: bits have one length, and seeds stand for noise."""
    assert {name.removeprefix("scouted ").split()[0] for name in TESTED} == {
        "gaussian",
        "independent",
        "laplace",
        "skellam",
    }


@pytest.mark.parametrize("name", ["gaussian", "laplace", "scouted gaussian"])
@pytest.mark.parametrize("times", [3.0, -3.0])
def test_a_scaled_release_is_an_outlier(name: str, times: float) -> None:
    """Every float of it is one that the test of single floats takes."""
    mechanism = MECHANISMS[name]
    uplink = Uplink(mechanism)
    body = np.frombuffer(
        uplink.send(np.ones(WIDTH), seeded_rng(3))[-mechanism.layout.size :], dtype=np.uint8
    ).copy()
    floats = body[: 4 * WIDTH].view("<f4")
    floats *= times
    with pytest.raises(Outlier, match="length of the payload must be at most"):
        uplink.receive([payload(mechanism, body.tobytes())])


def test_the_longest_codes_are_outliers() -> None:
    mechanism = MECHANISMS["skellam 16 bits"]
    size = mechanism.layout.size
    with pytest.raises(Outlier):
        Uplink(mechanism).receive([payload(mechanism, (bytes([0, 128]) * size)[:size])])


def test_steps_of_a_site_are_tested_as_a_whole() -> None:
    site = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, 64), 0.01), 10, 0.5), 5, 0.1, 8)
    assert site.honest_length < 1.2 * 5 * 0.1 * site.inner.honest_length
    scale = np.float32(0.5 * site.honest_length)
    with pytest.raises(Outlier):
        Uplink(site).receive(
            [payload(site, scale.tobytes() + bytes([255]) * (site.layout.size - 4))]
        )


@pytest.mark.parametrize("alone", [False, True])
def test_a_round_counts_outliers_and_goes_on_without_them(alone: bool) -> None:
    """As Flower adds payloads, and as NVFlare decodes each by itself; the node's release counts
    in the account.
    """
    mechanism = MECHANISMS["gaussian"]
    uplink = Uplink(mechanism)
    collector = Singles(uplink) if alone else Plain(uplink)
    scope = Scope(1, 1, mechanism)
    current = Round(scope=scope, collector=collector, request={}, counts=defaultdict(Counts))
    long = payload(mechanism, np.full(WIDTH, 5.0, dtype="<f4").tobytes())
    means = []
    for node, data in ((1, uplink.send(np.ones(WIDTH), seeded_rng(1))), (2, long)):
        current.ask([Asked(node)])
        release = {"release": Framed(1, 1, node, data).to_bytes()}
        current.take(Reply(node, 1, {"quietbit": release}))
        means.append(collector.latest() if alone else None)
    found = current.report()
    assert (found.answered, found.refused, found.outliers) == (1, 1, 1)
    assert "1 refused (1 outliers)" in found.lines()[-1][1]
    assert current.counts[2].releases == 1
    taken = means[0][0] if alone else current.mean()
    assert np.linalg.norm(taken) <= mechanism.honest_length
