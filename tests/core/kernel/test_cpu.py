"""The CPU kernel's own promises: no full-size temporaries, and no polynomial of many bits."""

import tracemalloc

import numpy as np
import pytest

from core.kernel.makers import make_sampler
from core.kernel.operations import sampled
from quietbit.kernel import cpu
from quietbit.kernel.cpu import CpuKernel
from quietbit.kernel.rng import secure_rng
from quietbit.kernel.tables import threshold_plan
from refusals import refuses


@pytest.mark.parametrize("bits", [1, 3])
def test_memory_does_not_grow_with_the_update(bits):
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


def test_polynomials_are_fitted_for_one_bit_alone(monkeypatch):
    """More bits are decided in cells: to fit eight would take the first release of every process
    a second.
    """
    fitted = []
    monkeypatch.setattr(
        cpu,
        "threshold_plan",
        lambda sampler: fitted.append(sampler.bits) or threshold_plan(sampler),
    )
    for bits in (1, 2, 8):
        sampled(CpuKernel(), make_sampler(2, bits, 1.0), np.zeros(8, np.float32))
    assert fitted == [1]


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_a_whole_number(threads):
    with refuses("threads"):
        CpuKernel(threads)
