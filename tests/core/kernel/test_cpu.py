"""The CPU kernel's own promises: no full-size temporaries, independent threads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from core.kernel.makers import make_sampler
from quietbit.kernel import cpu, cpu_plan
from quietbit.kernel.cpu import CpuKernel
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.kernel.sampler import Gain
from quietbit.kernel.tables import threshold_plan
from refusals import refuses


@pytest.mark.parametrize("bits", [1, 3])
def test_memory_does_not_grow_with_the_update(bits: int) -> None:
    sampler, kernel = make_sampler(2, bits, 1.0), CpuKernel()
    inputs = np.zeros(1 << 23, np.float32)
    out = np.empty(inputs.size * bits // 8, np.uint8)
    kernel.sample_packed(sampler, inputs, secure_rng(), out)  # make tables outside the measurement
    kernel.norm(inputs, 2)
    tracemalloc.start()
    kernel.sample_packed(sampler, inputs, secure_rng(), out)
    kernel.norm(inputs, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6_000_000 < inputs.nbytes / 5


@pytest.mark.parametrize("bits", [1, 2])
def test_many_chunks_and_threads_agree_with_one(bits: int) -> None:
    sampler = make_sampler(2, bits, 2.0)
    inputs = np.random.default_rng(0).normal(size=7 * cpu.CHUNK + 12_345).astype(np.float32)
    sampled = [CpuKernel(threads).sample(sampler, inputs, seeded_rng(1)) for threads in (1, 2, 5)]
    np.testing.assert_array_equal(sampled[0], sampled[1])
    np.testing.assert_array_equal(sampled[0], sampled[2])
    assert len({CpuKernel(threads).norm(inputs, 2) for threads in (1, 2, 5)}) == 1
    few = slice(4 * cpu.CHUNK - 500, 4 * cpu.CHUNK + 500)
    block = seeded_rng(1).draw(inputs.size)
    from quietbit.kernel.reference import exact_codes

    index = np.arange(few.start, few.stop)
    expected = exact_codes(
        sampler,
        inputs[few],
        Gain.of(1.0, sampler.scale),
        block.primary(few.start, 1000),
        block.ties(index),
    )
    np.testing.assert_array_equal(sampled[0][few], expected)


def test_polynomials_are_fitted_for_one_bit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bits are decided in cells: to fit eight would take the first release of every process
    a second.
    """
    fitted: list[int] = []
    monkeypatch.setattr(
        cpu_plan,
        "threshold_plan",
        lambda sampler: fitted.append(sampler.bits) or threshold_plan(sampler),
    )
    for bits in (1, 2, 8):
        CpuKernel().sample(make_sampler(2, bits, 1.0), np.zeros(8, np.float32), seeded_rng(1))
    assert fitted == [1]


def test_counting_over_several_pieces() -> None:
    rng = np.random.default_rng(2)
    size = 8 * (cpu.CHUNK // 4) + 77
    rows = rng.integers(0, 2, size=(18, size)).astype(np.uint8)
    payloads = [ReferenceKernel().pack(row, 1) for row in rows]
    for threads in (1, 2):
        total = np.zeros(size, np.int32)
        CpuKernel(threads).accumulate(payloads, 1, np.array([-1, 1]), total)
        np.testing.assert_array_equal(total, 2 * rows.sum(axis=0, dtype=np.int32) - 18)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_a_whole_number(threads: object) -> None:
    with refuses("threads"):
        CpuKernel(threads)  # type: ignore[arg-type]
