"""Outliers: tails computed exactly, honest clients at the clip, and payloads that somebody
wrote.
"""

from __future__ import annotations

import math
from collections import defaultdict
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

RISK = 2.0**-40
# And nowhere else: bits have one length, and seeds stand for noise.
NOISY = ("gaussian", "independent", "laplace", "skellam")
TESTED = [name for name in MECHANISMS if name.removeprefix("scouted ").startswith(NOISY)]


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


@pytest.mark.parametrize("name", TESTED)
def test_honest_clients_are_taken_in(name: str) -> None:
    mechanism = MECHANISMS[name]
    uplink, rng = Uplink(mechanism), seeded_rng(5)
    assert math.isfinite(mechanism.honest_length)
    update = np.full(WIDTH, 1e3)  # far outside of any clip: it is brought to it
    found = uplink.collect([uplink.send(update, rng) for _ in range(50)], on_error="skip")
    assert (found.count, found.refused) == (50, 0)
    one = uplink.receive([uplink.send(update, rng)])
    assert np.linalg.norm(one, mechanism.ball.norm.order) <= mechanism.honest_length


def scaled(mechanism: Any, times: float) -> bytes:
    """Return the body of a release of floats, every one of which is taken alone, times a number."""
    data = Uplink(mechanism).send(np.ones(WIDTH), seeded_rng(3))[-mechanism.layout.size :]
    return (times * np.frombuffer(data[: 4 * WIDTH], dtype="<f4")).tobytes() + data[4 * WIDTH :]


SITE = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, 64), 0.01), 10, 0.5), 5, 0.1, 8)
SKELLAM = MECHANISMS["skellam 16 bits"]
LONG: dict[str, tuple[Any, bytes]] = {
    **{
        f"{name}, times {times}": (MECHANISMS[name], scaled(MECHANISMS[name], times))
        for name in ("gaussian", "laplace", "scouted gaussian")
        for times in (3.0, -3.0)
    },
    "the longest codes": (SKELLAM, (bytes([0, 128]) * SKELLAM.layout.size)[: SKELLAM.layout.size]),
    "steps of a site": (
        SITE,
        np.float32(0.5 * SITE.honest_length).tobytes() + bytes([255]) * (SITE.layout.size - 4),
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_payload_is_an_outlier(name: str) -> None:
    """Every number of it is one that the test of single numbers takes."""
    mechanism, data = LONG[name]
    with pytest.raises(Outlier, match="length of the payload must be at most"):
        Uplink(mechanism).receive([payload(mechanism, data)])


def test_steps_of_a_site_are_hardly_longer_than_its_steps() -> None:
    assert SITE.honest_length < 1.2 * 5 * 0.1 * SITE.inner.honest_length


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
