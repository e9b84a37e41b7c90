"""A self-test of this machine, in a second: kernels, a certificate, and a payload.

Idea     each check computes something whose answer is known: other kernels' codes, bit for bit, an
         exact certificate, and the bytes of the wire format's example. A check that raises has
         failed; no check stops the others. What is random is tested before a release of quietbit
         (`tests/core/statistical`), and by `quietbit audit` of the laboratory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit.design.certify import certify
from quietbit.design.solve import shipped
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidPayload, QuietbitError
from quietbit.kernel.base import Kernel, packed_size
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import default_kernel, select
from quietbit.kernel.support import kernel_support
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.wire.payload import HEADER_SIZE, Payload
from quietbit.wire.uplink import Uplink

__all__ = ["Outcome", "run_checks", "self_test"]

Progress: TypeAlias = Callable[[float, str], None]

SEED = 20230723
DIMENSION = 50_003  # not a multiple of 8
CLIP = 70.0  # shorter than the updates that kernels are compared with
# docs/reference/wire_format.md, "A payload, byte by byte".
EXAMPLE = bytes.fromhex(
    "5142495401000100150000000000000003000000000000"
    "00addc77106f7e5120f90f402ac13256dfa5da70f0c59c72407e60df244de74db6cc99875fc2412daae8fe1f"
)


class Outcome(NamedTuple):
    """The outcome of a check."""

    name: str
    passed: bool
    detail: str
    seconds: float


def _say_nothing(_fraction: float, _message: str) -> None:
    """Report no progress."""


def self_test(report: Progress = _say_nothing) -> list[Outcome]:
    """Run every check."""
    checks: dict[str, Callable[[], str]] = {
        "kernels agree bit for bit": kernels_agree,
        "certificate of a design": certificate_holds,
        "payload": payload_holds,
    }
    return run_checks(checks, report)


def run_checks(
    checks: Mapping[str, Callable[[], str]], report: Progress = _say_nothing
) -> list[Outcome]:
    """Return the outcome of each check, which returns its finding or raises its failure."""
    outcomes = []
    for place, (name, check) in enumerate(checks.items()):
        report(place / len(checks), name)
        start = time.perf_counter()
        passed = False
        try:
            detail = check()
            passed = True
        except QuietbitError as error:
            detail = str(error)
        except Exception as error:  # report anything that a broken installation raises
            detail = f"{type(error).__name__}: {error}"
        outcomes.append(Outcome(name, passed, detail, time.perf_counter() - start))
    report(1.0, "done")
    return outcomes


def _expect(condition: object, sentence: str) -> None:
    if not condition:
        raise QuietbitError(sentence)


def kernels_agree() -> str:
    """Compare codes and bytes of every kernel with those of the reference, from the same words."""
    kernels = _kernels()
    inputs = np.random.default_rng(SEED).normal(scale=0.4, size=DIMENSION).astype(np.float32)
    for spec in (DesignSpec(2, 1, 1.0), DesignSpec(8, 3, 5.0)):
        sampler = Sampler.from_design(_shipped(spec), 1.0, 0.0, 1.0)
        for kernel in kernels:
            _compare_with_reference(kernel, sampler, inputs, spec.output_bits)
    names = ", ".join(kernel.name for kernel in kernels)
    return f"{names}: {DIMENSION:,} codes at 1 and at 3 bits"


def _kernels() -> list[Kernel]:
    """Return the default kernel, and every other that runs here but the reference."""
    kernels = [default_kernel()]
    named = {kernels[0].name, ReferenceKernel().name}
    for name, reason in kernel_support().items():
        if not reason and name not in named:
            kernels.append(select(name))
    return kernels


def _compare_with_reference(
    kernel: Kernel, sampler: Sampler, inputs: NDArray[np.float32], bits: int
) -> None:
    expected, found = np.zeros((2, packed_size(bits, DIMENSION)), dtype=np.uint8)
    for one, out in ((ReferenceKernel(), expected), (kernel, found)):
        one.sample_clipped(sampler, inputs, 2, CLIP, seeded_rng(SEED), out)
    wrong = np.count_nonzero(found != expected)
    sentence = (
        f"Kernel {kernel.name} differs from the reference in {wrong:,} of {found.size:,} bytes."
    )
    _expect(wrong == 0, sentence)


def certificate_holds() -> str:
    """Certify in exact arithmetic that a design meets its epsilon and has the bias it states."""
    design = _shipped(DesignSpec(8, 3, 5.0))
    measured = certify(design)
    epsilon = measured.epsilon_upper
    _expect(measured.meets_spec, f"A shipped design has a measured epsilon of {epsilon!r}.")
    bias = measured.bias_upper
    _expect(bias <= 1e-9, f"A shipped design has a bias of {bias!r}.")
    return f"epsilon {epsilon:.6g}, bias {bias:.1g}, in exact arithmetic"


def payload_holds() -> str:
    """Encode the wire format's example, send a payload there and back, and damage it."""
    table = np.array([[255.0, 1.0], [1.0, 255.0]]) / 256
    design = Design(DesignSpec(2, 1, 4.0), table, np.array([0.0, 1.0]))
    example = Uplink(InterpolatedMVU(design, Ball(Norm.L2, 21), 2.0, decoder="alphabet"), clip=1.5)
    sent = example.send(np.linspace(-1.0, 2.0, 21).astype(np.float32), seeded_rng(0))
    _expect(sent == EXAMPLE, "The example of the wire format was encoded into other bytes.")
    mechanism = InterpolatedMVU(_shipped(DesignSpec(2, 1, 1.0)), Ball(Norm.L2, DIMENSION))
    uplink = Uplink(mechanism)
    data = uplink.send(np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32))
    size = HEADER_SIZE + math.ceil(DIMENSION / 8)
    _expect(len(data) == size, f"A payload has {len(data):,} bytes, and should have {size:,}.")
    payload = Payload.from_bytes(data)
    _expect(payload.to_bytes() == data, "A payload read and written again is not the same.")
    same = np.array_equal(uplink.receive([data]), mechanism.values[payload.codes()])
    _expect(same, "The mean of one payload is not its decoded update.")
    flipped = bytearray(data)
    flipped[-2] ^= 4
    try:
        uplink.receive([bytes(flipped)])
    except InvalidPayload:
        return f"{len(EXAMPLE)} known bytes, {size:,} there and back, a flipped bit refused"
    raise QuietbitError("A payload with a flipped bit was accepted.")


def _shipped(spec: DesignSpec) -> Design:
    design = shipped(spec)
    if design is None:
        raise QuietbitError(f"The shipped design for {spec!r} is missing.")
    return design
