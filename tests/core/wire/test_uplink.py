"""The uplink, from updates to their mean, and the clip beside its mechanism."""

import math
import subprocess
import sys

import numpy as np
import pytest

from core.mechanism.makers import MECHANISMS, WIDTH, CountingWords, table, update
from quietbit import Ball, Gaussian, InterpolatedMVU, InvalidPayload, Uplink, calibrate, seeded_rng
from quietbit.errors import InvalidParameter
from quietbit.mechanism.registry import build, describe, noted, noted_identity
from quietbit.mechanism.scouts import Scouted
from quietbit.privacy.cost import sample_share
from quietbit.target import Adjacency, Unit
from refusals import refuses

torch = pytest.importorskip("torch")
ONE_BIT = MECHANISMS["imvu one bit l2"]


def test_threads_change_no_byte():
    dimension = 600_003
    vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    for bits in (1, 3):
        mechanism = InterpolatedMVU(table(5, bits, 2.0), Ball("l2", dimension))
        one, two = Uplink(mechanism), Uplink(mechanism, threads=2)
        payloads = [one.send(vector, seeded_rng(seed)) for seed in range(2)]
        assert payloads[0] == two.send(vector, seeded_rng(0))
        assert np.array_equal(one.receive(payloads), two.receive(payloads))


def test_a_tree_is_clipped_under_one_norm_and_restored():
    mechanism = MECHANISMS["imvu three bits five levels"]
    flat = 3 * update(mechanism.ball).astype(np.float32)
    tree = {
        "head": {"weight": torch.from_numpy(flat[47:].copy()).reshape(4, 5), "bias": flat[43:47]},
        "body": [flat[:16].reshape(2, 8), (flat[16:43],)],
    }
    uplink = Uplink(mechanism, like=tree)
    payload = uplink.send(tree, seeded_rng(4))
    assert payload == Uplink(mechanism).send(flat, seeded_rng(4))  # by sorted keys
    mean = Uplink(mechanism).receive([payload]).astype(np.float32)
    found = uplink.receive([payload])
    weight = found["head"]["weight"]
    assert weight.dtype == torch.float32
    assert np.array_equal(weight.numpy(), mean[47:].reshape(4, 5))
    assert np.array_equal(found["head"]["bias"], mean[43:47])
    assert np.array_equal(found["body"][0], mean[:16].reshape(2, 8))
    assert np.array_equal(found["body"][1][0], mean[16:43])


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_type_is_sent_and_restored(kind):
    vector = torch.from_numpy(update(ONE_BIT.ball)).to(getattr(torch, kind))
    uplink = Uplink(ONE_BIT, like=vector)
    payload = uplink.send(vector, seeded_rng(1))
    assert payload == Uplink(ONE_BIT).send(vector.to(torch.float64).numpy(), seeded_rng(1))
    assert uplink.receive([payload]).dtype == vector.dtype


def test_nothing_is_drawn_for_an_update_of_another_structure():
    good, rng = update(ONE_BIT.ball), CountingWords()
    for like, bad in ((None, {"a": None}), (None, np.float64(1.0)), (good.reshape(1, -1), good)):
        with pytest.raises(InvalidParameter):
            Uplink(ONE_BIT, like=like).send(bad, rng)
    assert rng.draws == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"mechanism": "imvu"}, "mechanism"),
        ({"like": np.zeros(3)}, "number of entries of `like`"),
        ({"threads": 0}, "threads"),
        ({"max_payloads": 0}, "max_payloads"),
        ({"max_payloads": 2**31}, "max_payloads"),
        *(
            ({"clip": clip}, "clip")
            for clip in (0, -1.0, math.nan, math.inf, 1e28, 1e-28, True, "1", None)
        ),
    ],
)
def test_impossible_uplinks_are_refused(arguments, name):
    with refuses(name):
        Uplink(**({"mechanism": MECHANISMS["gaussian"]} | arguments))


def test_a_structure_that_is_not_trainable_is_refused():
    with pytest.raises(InvalidParameter, match="trainable"):
        Uplink(MECHANISMS["gaussian"], like=np.zeros(WIDTH, np.int64))


def test_a_repr_shows_no_update():
    assert "123.456" not in repr(Uplink(MECHANISMS["gaussian"], like=np.full(WIDTH, 123.456)))


ATTACKS = {
    "zero": np.zeros(WIDTH),
    "one entry": 1e300 * np.eye(1, WIDTH)[0],
    "all": np.full(WIDTH, -1e30),
    "floats near their end": np.full(WIDTH, 3e38, dtype=np.float32),
    "hardly there": np.full(WIDTH, 5e-324),
    "short floats": np.full(WIDTH, 6e4, dtype=np.float16),
    "all sizes": np.logspace(-300, 300, WIDTH),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("clip", [1e-27, 1e-20, 0.7, 1.0, 1e20, 1e27])
def test_whatever_is_sent_is_within_the_clip(attack, clip):
    """Noise of a millionth shows the released vector: in clips, at any clip."""
    channel = Uplink(Gaussian(Ball("l2", WIDTH), 1e-6), clip=clip)
    found = channel.receive([channel.send(ATTACKS[attack], seeded_rng(1))]) / clip
    assert np.linalg.norm(found) <= 1 + 1e-4
    if attack in ("all", "floats near their end", "short floats") and clip <= 1e4:
        assert np.linalg.norm(found) >= 0.999


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_ball_with_a_radius_is_refused_and_noted_ones_are_read(name):
    mechanism = MECHANISMS[name]
    old = describe(mechanism, 0.7)
    with pytest.raises(InvalidParameter, match="the clip goes beside the mechanism"):
        build(old)
    if type(mechanism.core).__module__.startswith("quietbit."):
        assert noted(old) == mechanism
    else:
        with refuses("ball of the mechanism"):
            noted(old)


def test_a_clip_that_moved_is_read_from_ledgers_of_earlier_versions():
    moved = {"kind": "Watched", "inner": describe(ONE_BIT, 2.0), "clip": 2.0}
    assert noted(moved) == ONE_BIT
    assert noted({**moved, "every": 20, "truth": 0.3}) == Scouted(ONE_BIT, 20, 0.3)
    assert len(noted_identity(moved)) == 64
    with pytest.raises(InvalidParameter):
        build(moved)


MEMORY = """
import resource
import numpy as np
from quietbit import Ball, InterpolatedMVU, Uplink
from quietbit.design.table import Design, DesignSpec
d = 2**25
design = Design(DesignSpec(2, 1, 1.0), np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([0.0, 1.0]))
Uplink(InterpolatedMVU(design, Ball("l2", 10))).send(np.ones(10, np.float32))
uplink = Uplink(InterpolatedMVU(design, Ball("l2", d)))
tree = {"a": np.ones(d // 2, np.float32), "b": [np.ones((2, d // 4), np.float32)]}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
payload = uplink.send(tree)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - len(payload))
"""


def test_sending_takes_the_payload_and_little_more():
    """A tree of 128 MB: the chunks of a thread, not a copy of the tree in any type."""
    result = subprocess.run(
        [sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True
    )
    assert int(result.stdout) < 32 * 2**20


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_refused_where_samples_are_protected(kind):
    """Means of 10,000 gradients that differ in one lie further apart after rounding to 11 bits."""
    mechanism = Gaussian(Ball("l2", 64), 1.0)
    # Between two numbers of 11 bits.
    middle = np.full(64, 0.1 + 2.0**-15 - (0.1 - float(np.float16(0.1))))
    mean, other = ((middle + step).astype(np.float16).astype(float) for step in (-1e-9, 1e-9))
    # What the price counts with.
    assert np.linalg.norm(mean - other) > sample_share(Adjacency.REPLACE_ONE, 10_000)
    half = torch.from_numpy(middle).to(getattr(torch, kind))
    protected = Uplink(mechanism, unit=Unit.SAMPLE)
    for refused in (half, [middle[:32].astype(np.float32), half[32:]]):
        with refuses("type of the update", "half precision"):
            protected.send(refused)
    assert protected.send(middle.astype(np.float32))
    assert Uplink(mechanism).send(half)


def test_one_payload_for_many_and_a_payload_of_another_mechanism_are_named():
    target = {"ball": Ball("l2", 100), "epsilon": 4.0, "delta": 1e-5, "adjacency": "zero-out"}
    vector, one_bit = (Uplink(calibrate(name, **target).mechanism) for name in ("vmvu", "imvu"))
    payload = one_bit.send(np.zeros(100))
    for wrong in (payload, 3):
        with refuses("payloads", type(wrong).__name__):
            one_bit.receive(wrong)
    for own, other in ((vector, payload), (one_bit, vector.send(np.zeros(100)))):
        with pytest.raises(InvalidPayload, match="mechanism"):
            own.receive([other])


def test_an_epsilon_near_zero_is_refused_with_the_least():
    target = {"ball": Ball("l2", 100), "delta": 1e-5, "adjacency": "replace-one"}
    with refuses("epsilon", 1e-6):
        calibrate("vmvu", epsilon=1e-6, **target)
