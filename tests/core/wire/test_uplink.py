"""The uplink, from updates to their mean."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import quietbit
from core.mechanism.makers import LIBRARY, MECHANISMS, WIDTH, CountingWords, table, update
from path import many, width
from quietbit.errors import InvalidParameter
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.privacy.cost import sample_share
from quietbit.target import Adjacency, Unit
from quietbit.wire.uplink import Uplink
from refusals import refuses

torch = pytest.importorskip("torch")


@pytest.fixture(params=LIBRARY.values(), ids=LIBRARY.keys())
def mechanism(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_payload_is_bytes_of_the_promised_size(mechanism: Any) -> None:
    payload = Uplink(mechanism).send(update(mechanism.ball))
    assert isinstance(payload, bytes)
    assert len(payload) == -(-width(mechanism) * many(mechanism) // 8) + (
        64 if mechanism.layout.bits else 56
    )


def test_threads_change_no_byte() -> None:
    dimension = 600_003
    for bits in (1, 3):
        mechanism = InterpolatedMVU(table(5, bits, 2.0), Ball(Norm.L2, dimension))
        vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
        one, two = Uplink(mechanism), Uplink(mechanism, threads=2)
        payloads = [one.send(vector, seeded_rng(seed)) for seed in range(3)]
        assert payloads[0] == two.send(vector, seeded_rng(0))
        assert np.array_equal(one.receive(payloads), two.receive(payloads))


def test_a_tree_is_clipped_under_one_norm_and_restored() -> None:
    mechanism = MECHANISMS["imvu three bits five levels"]
    flat = 3 * update(mechanism.ball).astype(np.float32)
    tree = {
        "head": {"weight": torch.from_numpy(flat[:20].copy()).reshape(4, 5), "bias": flat[20:24]},
        "body": [flat[24:40].reshape(2, 8), (flat[40:],)],
    }
    order = np.concatenate([flat[24:40], flat[40:], flat[20:24], flat[:20]])  # by sorted keys
    uplink = Uplink(mechanism, like=tree)
    payload = uplink.send(tree, seeded_rng(4))
    assert payload == Uplink(mechanism).send(order, seeded_rng(4))
    mean = Uplink(mechanism).receive([payload])
    found = uplink.receive([payload])
    assert found["head"]["weight"].dtype == torch.float32
    assert np.array_equal(
        found["head"]["weight"].numpy(), mean[47:].astype(np.float32).reshape(4, 5)
    )
    assert np.array_equal(found["head"]["bias"], mean[43:47].astype(np.float32))
    assert np.array_equal(found["body"][0], mean[:16].astype(np.float32).reshape(2, 8))
    assert np.array_equal(found["body"][1][0], mean[16:43].astype(np.float32))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_type_is_sent_and_restored(kind: str) -> None:
    mechanism = MECHANISMS["imvu one bit l2"]
    vector = torch.from_numpy(update(mechanism.ball)).to(getattr(torch, kind))
    exact = vector.to(torch.float64).numpy()
    payload = Uplink(mechanism, like=vector).send(vector, seeded_rng(1))
    assert payload == Uplink(mechanism).send(exact, seeded_rng(1))
    assert Uplink(mechanism, like=vector).receive([payload]).dtype == vector.dtype


def test_nothing_is_drawn_for_an_update_of_another_structure() -> None:
    mechanism = MECHANISMS["imvu one bit l2"]
    good, rng = update(mechanism.ball), CountingWords()
    for bad in ({"a": None}, np.float64(1.0)):
        with pytest.raises(InvalidParameter):
            Uplink(mechanism).send(bad, rng)
    with pytest.raises(InvalidParameter):
        Uplink(mechanism, like=good.reshape(1, -1)).send(good, rng)
    assert rng.draws == 0


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"mechanism": "imvu"}, "mechanism", "str"),
        ({"like": np.zeros(3)}, "number of entries of `like`", 3),
        ({"threads": 0}, "threads", 0),
        ({"max_payloads": 0}, "max_payloads", 0),
        ({"max_payloads": 2**31}, "max_payloads", 2**31),
    ],
)
def test_impossible_uplinks_are_refused(arguments: dict[str, Any], name: str, value: Any) -> None:
    with refuses(name, value):
        Uplink(**({"mechanism": MECHANISMS["gaussian"]} | arguments))


def test_a_structure_that_is_not_trainable_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="trainable"):
        Uplink(MECHANISMS["gaussian"], like=np.zeros(WIDTH, np.int64))


def test_a_repr_shows_no_update() -> None:
    mechanism = MECHANISMS["gaussian"]
    assert "123.456" not in repr(Uplink(mechanism, like=np.full(WIDTH, 123.456)))


MEMORY = """
import resource, sys
import numpy as np
from quietbit.target import Adjacency, Unit
from quietbit.privacy.cost import sample_share
from quietbit.wire.uplink import Uplink
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.ball import Ball
from quietbit.design.table import DesignSpec
from quietbit.design.table import Design
d = 2**25
design = Design(DesignSpec(2, 1, 1.0), np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0.0, 1.0]))
Uplink(InterpolatedMVU(design, Ball("l2", 10))).send(np.ones(10, np.float32))
uplink = Uplink(InterpolatedMVU(design, Ball("l2", d)))
tree = {"a": np.ones(d // 2, np.float32), "b": [np.ones((2, d // 4), np.float32)]}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
payload = uplink.send(tree)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - len(payload))
"""


def test_sending_takes_the_payload_and_little_more() -> None:
    """A tree of 128 MB: the chunks of a thread, not a copy of the tree in any type."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True
    )
    assert int(result.stdout) < 32 * 2**20


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_refused_where_samples_are_protected(kind: str) -> None:
    """Means of 10,000 gradients that differ in one lie further apart after rounding to 11 bits."""
    mechanism = Gaussian(Ball(Norm.L2, 64), 1.0)
    middle = np.full(
        64, 0.1 + 2.0**-15 - (0.1 - float(np.float16(0.1)))
    )  # between two numbers of 11 bits
    mean, other = middle - 1e-9, middle + 1e-9
    moved = np.linalg.norm(
        mean.astype(np.float16).astype(float) - other.astype(np.float16).astype(float)
    )
    assert moved > sample_share(Adjacency.REPLACE_ONE, 10_000)  # what the price counts with
    protected = Uplink(mechanism, unit=Unit.SAMPLE)
    half = mean.astype(np.float16)
    if kind == "bfloat16":
        half = torch.from_numpy(mean).to(torch.bfloat16)
    with refuses("type of the update", "half precision"):
        protected.send(half)
    with refuses("type of the update", "half precision"):
        protected.send([mean[:32].astype(np.float32), half[32:]])
    assert protected.send(mean.astype(np.float32))
    assert Uplink(mechanism).send(half)


def test_one_payload_for_many_and_a_payload_of_another_mechanism_are_named():
    ball = quietbit.Ball("l2", 100)
    target = {"ball": ball, "epsilon": 4.0, "delta": 1e-5, "adjacency": "zero-out"}
    vector, one_bit = (
        quietbit.Uplink(quietbit.calibrate(name, **target).mechanism) for name in ("vmvu", "imvu")
    )
    payload = one_bit.send(np.zeros(100))
    for wrong in (payload, 3):
        with refuses("payloads", type(wrong).__name__):
            one_bit.receive(wrong)
    for own, other in ((vector, payload), (one_bit, vector.send(np.zeros(100)))):
        with pytest.raises(quietbit.InvalidPayload, match="mechanism"):
            own.receive([other])


def test_an_epsilon_near_zero_is_refused_with_the_least():
    target = {"ball": quietbit.Ball("l2", 100), "delta": 1e-5, "adjacency": "replace-one"}
    with refuses("epsilon", 1e-6):
        quietbit.calibrate("vmvu", epsilon=1e-6, **target)
