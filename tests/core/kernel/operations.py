"""Every operation of a kernel as a function from the kernel to bytes, which are the same on all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from core.kernel.makers import FixedKey, GivenWords, make_sampler
from quietbit.kernel.base import Job, Kernel, packed_size
from quietbit.kernel.expand import acceptance_limits
from quietbit.kernel.normals import unit
from quietbit.kernel.reference import thresholds
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.rounded import NoiseLaw
from quietbit.kernel.sampler import Gain, Sampler

SAMPLERS = {f"{bits} bits": make_sampler(2, bits) for bits in range(1, 9)}
SAMPLERS |= {
    f"{bits} bits, five levels": make_sampler(5, bits, 6.0, 0.8, -0.3, 1.3) for bits in range(1, 9)
}
SAMPLERS |= {
    "a polynomial of high degree": make_sampler(2, 1, 5.0, 0.25, 0.25, 0.75),
    "too steep for a polynomial": make_sampler(2, 1, 30.0),
    "almost flat": make_sampler(2, 1, 0.01),
    "forty levels": make_sampler(40, 2, 20.0),
    "a clamp beyond what the table covers": make_sampler(3, 2, 2.0, 3.0, -2000.0, 3000.0),
    "a clamp to one point": make_sampler(2, 1, 1.0, 0.5, 0.5, 0.5),
    "beyond the unit": make_sampler(2, 1, 3.0, 0.8, -0.1, 1.1),
}
ONE_BIT = SAMPLERS["1 bits"]
TWO_BITS = SAMPLERS["2 bits, five levels"]
THREE_BITS = SAMPLERS["3 bits"]
STEEP = SAMPLERS["too steep for a polynomial"]
FOUR = (ONE_BIT, TWO_BITS, THREE_BITS, STEEP)


def update(size: int, seed: int = 0, kind=np.float32):
    """Mostly small values, some at and beyond the clamps, zeros and subnormals."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 10.0 ** rng.uniform(-4, 0.5, size=size)
    values[::17] = 0.0
    values[5::31] = np.finfo(np.float32).smallest_subnormal
    values[7::29] = 1.0
    values[11::37] = -1.0
    if kind != "bfloat16":
        return values.astype(kind)
    return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def given_words() -> GivenWords:
    rng = np.random.default_rng(4)
    return GivenWords(rng.integers(0, 2**16, 9001), rng.integers(0, 2**48, 9001))


SOURCES = {"a key": FixedKey, "a seed": lambda: seeded_rng(3), "an array": given_words}


def room(sampler: Sampler, inputs):
    """A buffer for the codes of an update, full of what a kernel must write over."""
    parts = inputs if isinstance(inputs, list) else [inputs]
    size = sum(math.prod(part.shape) for part in parts)
    return np.full(packed_size(sampler.bits, size), 0xAA, np.uint8)


def sampled_with(kernel: Kernel, sampler: Sampler, inputs, factor: float, rng) -> bytes:
    """The codes of a multiple of the update, which is not clipped."""
    flat, out = kernel._flat(inputs), room(sampler, inputs)
    gain = Gain.of(factor, sampler.scale)
    kernel._sample(Job(sampler, gain, flat, rng.draw(flat.size), out))
    return out.tobytes()


def sampled(
    kernel: Kernel, sampler: Sampler, inputs, factor: float = 1.0, source: str = "a seed"
) -> bytes:
    return sampled_with(kernel, sampler, inputs, factor, SOURCES[source]())


def clipped(
    kernel: Kernel,
    sampler: Sampler,
    inputs,
    radius: float = 0.5,
    order=2,
    source: str = "a seed",
) -> bytes:
    out = room(sampler, inputs)
    kernel.sample_clipped(sampler, inputs, order, radius, SOURCES[source](), out)
    return out.tobytes()


def rotated(
    kernel: Kernel,
    sampler: Sampler,
    inputs,
    block: int = 512,
    radius: float = 0.5,
    source: str = "a seed",
) -> bytes:
    out = room(sampler, inputs)
    kernel.sample_rotated(sampler, inputs, 9, block, radius, SOURCES[source](), out)
    return out.tobytes()


def every(run: Callable[..., bytes], samplers, inputs, **more):
    """An operation with one sampler after the other."""
    return lambda kernel: b"".join(run(kernel, sampler, inputs, **more) for sampler in samplers)


def at_thresholds(kernel: Kernel, sampler: Sampler) -> bytes:
    """Every coordinate's word is within one unit, of 2^-16 or of 2^-64, of one of its thresholds."""
    inputs, rng = update(3001, 100), np.random.default_rng(sampler.bits)
    upper, lower = thresholds(sampler, inputs, Gain.of(0.9, sampler.scale))
    places = np.arange(3001), rng.integers(0, sampler.symbols - 1, 3001)
    exact = upper[places].astype(object) * 2**48 + lower[places]
    words = exact + rng.choice([-(2**48), -1, 0, 1, 2**48], 3001)
    words = np.clip(words, 0, 2**64 - 1)
    source = GivenWords((words >> 48).tolist(), (words & (2**48 - 1)).tolist())
    return sampled_with(kernel, sampler, inputs, 0.9, source)


def norms(inputs):
    return lambda kernel: np.array([kernel.norm(inputs, order) for order in (1, 2)]).tobytes()


def turned(size: int, block: int | None):
    """A rotation and the way back, in both precisions."""

    def run(kernel: Kernel) -> bytes:
        found = []
        for kind in (np.float32, np.float64):
            values = update(size, size, kind)
            there = kernel.rotate(values, 11, block, factor=0.3, kind=kind)
            found.append(there.tobytes())
            found.append(kernel.rotate_back(there, 11, block).tobytes())
        return b"".join(found)

    return run


def rotated_rows(kernel: Kernel) -> bytes:
    return kernel.rotated_rows(PARTS, 5, 0.37, np.array([0, 7, 4000])).tobytes()


def expanded(count: int):
    """Normals of a seed, and one row of each of as many strata."""

    def run(kernel: Kernel) -> bytes:
        rows = kernel.rows(bytes(range(8)), max(1, count), 5 * count + 1)
        return kernel.normals(bytes(range(16)), count).tobytes() + rows.tobytes()

    return run


def searched(size: int, number: int):
    direction = unit(np.random.default_rng(1).normal(size=size))[0]
    limits = acceptance_limits([0.01, 0.05, 0.2, 1.0])
    edges = np.array([-1.0, 0.0, 1.5])

    def run(kernel: Kernel) -> bytes:
        block = seeded_rng(number).draw(1)
        seed, tries = kernel.search(direction, edges, limits, block, acceptance_lower=0.1)
        return seed + bytes([tries % 256])

    return run


def summed(count: int, size: int):
    def run(kernel: Kernel) -> bytes:
        rng = np.random.default_rng(count)
        nonces, seeds = (rng.integers(0, 256, (7, width), dtype=np.uint8) for width in (8, 16))
        total = np.zeros(size, np.int64)
        kernel.add_seeds(nonces, seeds, total, count=count, shift=44)
        return total.tobytes()

    return run


def words_of_a_stream(kernel: Kernel) -> bytes:
    """Where the library makes them, whatever the kernel is."""
    return FixedKey().draw(1).uniform64(5, 3, 4099).tobytes()


def noisy(law: NoiseLaw):
    values = update(2051, 1, np.float64) * 10.0 ** np.arange(-3, 4).repeat(293)
    block = seeded_rng(5).draw(1)
    return lambda kernel: kernel.rounded_noise(values, 1.3, law, block, 7).tobytes()


PARTS = [
    update(2603, 1, np.float16),
    update(1, 2).reshape(1, 1),
    update(0),
    update(1500, 3, np.float64)[::3],
    update(907, 4, "bfloat16"),
]
LAYOUTS = {
    "rows and columns exchanged": update(6000).reshape(-1, 120).T,
    "every third column": update(6000).reshape(-1, 120)[:, ::3],
    "the last row first": update(6000).reshape(-1, 120)[::-1],
    "one number": np.float32(0.25).reshape(()),
    "in parts of several types": PARTS,
}
LAYOUTS |= {str(kind): update(1003, 6, kind) for kind in ("float16", "float64", ">f4", "bfloat16")}
EXTREME = {1e300: (0.5, 3e-301), 1e-38: (1e38, 1.0), 1e-300: (1e-9, 1.0), 1e299: (1e-140, 1e-170)}
SIZES = (0, 1, 7, 8, 9, 63, 64, 65, 2047, 2048, 2049, 2051, 4096, 4099)
OPERATIONS: dict[str, Any] = {
    "rows of a rotation": rotated_rows,
    "words of a stream": words_of_a_stream,
}
for name, sampler in SAMPLERS.items():
    wide = update(1203 if sampler.bits > 5 else 5003, sampler.bits)
    OPERATIONS[f"codes of {name}, words at the thresholds"] = partial(
        at_thresholds, sampler=sampler
    )
    for factor in (1.0, 0.37):
        OPERATIONS[f"codes of {name}, times {factor}"] = partial(
            sampled, sampler=sampler, inputs=wide, factor=factor
        )
for size in SIZES:
    OPERATIONS[f"codes of {size} numbers"] = every(sampled, FOUR, update(size, size))
    OPERATIONS[f"clipped codes of {size} numbers"] = partial(
        clipped, sampler=THREE_BITS, inputs=update(size, size), source="a key"
    )
for name, inputs in LAYOUTS.items():
    OPERATIONS[f"codes, {name}"] = every(sampled, FOUR, inputs, factor=0.5)
    OPERATIONS[f"norms, {name}"] = norms(inputs)
    OPERATIONS[f"clipped, {name}"] = partial(
        clipped, sampler=ONE_BIT, inputs=inputs, source="a key"
    )
for source in SOURCES:
    OPERATIONS[f"clipped, words of {source}"] = every(clipped, FOUR, update(9001, 2), source=source)
    OPERATIONS[f"rotated, words of {source}"] = every(rotated, FOUR, update(9001, 2), source=source)
for order, radius in product((1, 2), (0.3, 10.0, 1e6)):
    OPERATIONS[f"clipped to {radius} under order {order}"] = every(
        clipped, FOUR, update(5003, 3), radius=radius, order=order
    )
for size, block in (
    (5003, 4096),
    (5003, 64),
    (20_001, 4096),
    (16_384, 2048),
    (9000, 8192),
):
    for form, inputs in (("", update(size, 5)), (" in parts", np.split(update(size, 5), [1001]))):
        OPERATIONS[f"rotated {size} in blocks of {block}{form}"] = every(
            rotated, FOUR[:3], inputs, block=block
        )
for magnitude, (scale, factor) in EXTREME.items():
    for kind, bits in product((np.float32, np.float64), (1, 3, 8)):
        with np.errstate(over="ignore", under="ignore"):
            inputs = (update(501, 9, np.float64) * magnitude).astype(kind)
        OPERATIONS[f"codes of {np.dtype(kind)} near {magnitude}, {bits} bits"] = partial(
            sampled,
            sampler=make_sampler(2, bits, 2.0, scale),
            inputs=np.where(np.isfinite(inputs), inputs, kind(0)),
            factor=factor,
        )
OPERATIONS["more codes than the list of undecided ones holds"] = partial(
    sampled,
    sampler=make_sampler(2, 1, 2.0, 1e-140),
    inputs=update(9001, 1, np.float64) * 1e300,
    factor=1e-170,
)
OPERATIONS["codes of nothing"] = every(sampled, FOUR, update(501), factor=0.0)
for magnitude, radius in ((1e300, 1.0), (1e-300, 1e-301), (1e-300, 1.0), (0.0, 1.0), (1e200, 1e-9)):
    OPERATIONS[f"a length near {magnitude} clipped to {radius}"] = partial(
        clipped, sampler=ONE_BIT, inputs=update(3001, 4, np.float64) * magnitude, radius=radius
    )
for size in (1, 3, 31, 33, 64, 100, 4095, 4097, 9000):
    for block in {None, 1, min(4096, 1 << (size.bit_length() - 1))}:
        OPERATIONS[f"rotation of {size} in blocks of {block}"] = turned(size, block)
for power in range(15):
    OPERATIONS[f"rotation of 2^{power}"] = turned(1 << power, None)
for count in (0, 1, 127, 128, 129, 1100):
    OPERATIONS[f"{count} normals and rows"] = expanded(count)
for size, number in ((90, 0), (150, 1), (150, 2), (150, 3), (1024, 4)):
    OPERATIONS[f"seed {number} for {size} numbers"] = searched(size, number)
for count, size in ((5, 64), (200, 1 << 12)):
    OPERATIONS[f"sums of {count} rows of {size}"] = summed(count, size)
for law in NoiseLaw:
    OPERATIONS[f"{law} noise"] = noisy(law)
LARGE = {
    f"rotation of {size} in blocks of {block}": turned(size, block)
    for size, block in ((1 << 17, None), (1 << 18, None), (600_000, None), (600_000, 1 << 19))
}
