"""The CPU kernel's own promises: no full-size temporaries, independent threads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from core.kernel.makers import make_sampler
from quietbit.kernel import cpu
from quietbit.kernel.base import packed_size
from quietbit.kernel.cpu import CpuKernel
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng, seeded_rng
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
@pytest.mark.parametrize("block", [None, 4096])
def test_any_number_of_threads_gives_the_same_payload(bits: int, block: int | None) -> None:
    sampler = make_sampler(2, bits, 2.0)
    size = 3 * cpu.FEW + 4099
    inputs = np.random.default_rng(0).normal(size=size).astype(np.float32)
    parts = [inputs[:70_001], inputs[70_001:]]
    payloads = set()
    for threads in (1, 2, 3):
        out = np.empty(packed_size(bits, size), np.uint8)
        kernel = CpuKernel(threads)
        if block is None:
            kernel.sample_clipped(sampler, parts, 2, 1.0, seeded_rng(1), out)
        else:
            kernel.sample_rotated(sampler, parts, 5, block, 1.0, seeded_rng(1), out)
        payloads.add((out.tobytes(), kernel.norm(parts, 2)))
    assert len(payloads) == 1


def test_polynomials_are_fitted_for_one_bit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bits are decided in cells: to fit eight would take the first release of every process
    a second.
    """
    fitted: list[int] = []
    monkeypatch.setattr(
        cpu,
        "threshold_plan",
        lambda sampler: fitted.append(sampler.bits) or threshold_plan(sampler),
    )
    for bits in (1, 2, 8):
        CpuKernel().sample(make_sampler(2, bits, 1.0), np.zeros(8, np.float32), seeded_rng(1))
    assert fitted == [1]


def test_threads_count_together() -> None:
    rng = np.random.default_rng(2)
    size = 2 * cpu.FEW + 77
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
