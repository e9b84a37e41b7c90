"""A self-test of sampler, account and payload on this machine, in a few seconds.

Idea     each check computes something whose answer is known: other kernels' codes, the table's
         frequencies, an exact certificate, a closed form of the paper, the bytes of the wire
         format's example, and the mean and variance of known updates sent over the real path
         (`quietbit audit` of the laboratory looks closer). A check that raises has failed; no check
         stops the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit.design.certify import certify
from quietbit.design.profile import Profile
from quietbit.design.solve import catalogue, shipped
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidPayload, QuietbitError
from quietbit.kernel.base import Kernel, packed_size
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import RandomBits, secure_rng, seeded_rng
from quietbit.kernel.sampler import Sampler
from quietbit.kernel.select import default_kernel, kernel_support, select
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.vector import VectorMVU
from quietbit.privacy.account import Account
from quietbit.target import Adjacency, Target
from quietbit.wire.payload import HEADER_SIZE, Payload
from quietbit.wire.uplink import Uplink

__all__ = ["Outcome", "run_checks", "self_test"]

Progress: TypeAlias = Callable[[float, str], None]

FALSE_ALARM = 1e-9  # probability that a correct sampler fails a check
DRAWS = 400_000
LEAST_EXPECTED = 10_000
# The chi-square law is a limit; at 10,000 expected counts and more its tail is off by far less than
# this margin.
ASYMPTOTIC_MARGIN = 1000
SEED = 20230723
DIMENSION = 50_003  # not a multiple of 8, nor is the next
FEW = 2_003
RELEASED = 35  # coordinates
RELEASES = 400
DEVIATIONS = 9.0
SPREAD = 0.15
FACTOR = 0.75  # by which updates are clipped where kernels are compared
# eps^2/8 alpha per release is the curve of Gaussian noise of multiplier 2: 50 releases, delta 1e-5,
# 60 digits.
FIFTY_ONE_BIT_RELEASES = 22.019608744456733
# log(1/2) - log(sigmoid(-eps)) at eps = 1: one coordinate moves from 0 to the boundary, and nothing
# is worse.
PURE_ONE_BIT = 0.62011450695827752
ACCOUNT_TOLERANCE = 1e-6
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


def self_test(report: Progress = _say_nothing, rng: RandomBits | None = None) -> list[Outcome]:
    """Run every check; random words are the operating system's unless given."""
    checks: dict[str, Callable[[], str]] = {
        "kernels agree bit for bit": kernels_agree,
        "codes follow the formula": formula_holds,
        "sampled frequencies": partial(frequencies, rng or secure_rng()),
        "shipped designs": designs_hold,
        "privacy account": account_holds,
        "payload": partial(payload_holds, rng),
        "mean and variance of releases": partial(releases_hold, rng),
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
    reference = ReferenceKernel()
    expected = reference.sample(sampler, inputs, seeded_rng(SEED), factor=FACTOR)
    codes = kernel.sample(sampler, inputs, seeded_rng(SEED), factor=FACTOR)
    wrong = np.count_nonzero(codes != expected)
    sentence = (
        f"Kernel {kernel.name} differs from the reference in {wrong:,} of {DIMENSION:,} codes."
    )
    _expect(wrong == 0, sentence)
    packed = np.zeros(packed_size(bits, DIMENSION), dtype=np.uint8)
    kernel.sample_packed(sampler, inputs, seeded_rng(SEED), packed, factor=FACTOR)
    same = packed.tobytes() == bytes(reference.pack(expected, bits))
    _expect(same, f"Kernel {kernel.name} packs codes into other bytes than the reference.")


def formula_holds() -> str:
    """Compare codes with those of a plain softmax, which shares no code with kernels."""
    kernel = default_kernel()
    mechanism = InterpolatedMVU(_shipped(DesignSpec(8, 3, 5.0)), Ball(Norm.L2, 1.0, FEW), beta=3.0)
    update = mechanism.ball.clip(np.random.default_rng(SEED).normal(size=FEW))
    codes = kernel.sample(mechanism.sampler, update, seeded_rng(SEED))
    block = seeded_rng(SEED).draw(FEW)  # the same words
    ties = block.ties(np.arange(FEW)) & np.uint64(2**48 - 1)
    uniform = block.primary(0, FEW) * 2.0**-16 + ties * 2.0**-64
    for code, value, place in zip(codes.tolist(), update.tolist(), uniform.tolist(), strict=True):
        edges = np.cumsum(mechanism.distribution(value))[:-1]
        expected = int(np.count_nonzero(place >= edges))
        sentence = f"Kernel {kernel.name} gave code {code} where its distribution gives {expected}."
        _expect(code == expected, sentence)
    return f"{kernel.name}: {FEW:,} codes recomputed from their words"


def frequencies(rng: RandomBits) -> str:
    """Compare codes drawn at every level with the rows of the table, by Pearson's chi-square."""
    from scipy.stats import chi2  # slow to import, and needed here alone

    worst = 0.0
    degrees = 0
    for spec in (DesignSpec(2, 1, 1.0), DesignSpec(8, 2, 3.0)):
        design = _shipped(spec)
        statistic = _chi_square(design, rng)
        levels, symbols = design.probabilities.shape
        freedom = levels * (symbols - 1)
        limit = float(chi2.isf(FALSE_ALARM / (2 * ASYMPTOTIC_MARGIN), freedom))
        sentence = (
            f"Codes of {spec.output_bits} bits do not follow the table: chi-square {statistic:.1f},"
            f" above {limit:.1f}, with {freedom} degrees of freedom."
        )
        _expect(statistic <= limit, sentence)
        worst = max(worst, statistic / limit)
        degrees += freedom
    return (
        f"chi-square at most {worst:.2f} of its limit, {degrees} degrees of freedom, "
        f"false alarm below {FALSE_ALARM:g}"
    )


def _chi_square(design: Design, rng: RandomBits) -> float:
    """Return Pearson's statistic of codes drawn at every level of a design."""
    kernel = default_kernel()
    sampler = Sampler.from_design(design, 1.0, 0.0, 1.0)
    expected = DRAWS * design.probabilities
    _expect(expected.min() >= LEAST_EXPECTED, "Counts are too small for the chi-square law.")
    statistic = 0.0
    for level, row in zip(design.spec.levels.tolist(), expected, strict=True):
        codes = kernel.sample(sampler, np.full(DRAWS, level - 0.5), rng)
        counts = np.bincount(codes.reshape(-1), minlength=row.size)
        sentence = f"A code lies outside the {row.size} symbols of the design."
        _expect(counts.size == row.size, sentence)
        statistic += float((np.square(counts - row) / row).sum())
    return statistic


def designs_hold() -> str:
    """Certify that every design meets its epsilon and has exactly the bias it states."""
    designs = list(catalogue())
    _expect(designs, "No design ships with this installation.")
    for design in designs:
        measured = certify(design)
        spec = design.spec
        name = f"{spec.input_levels} levels, {spec.output_bits} bits, epsilon {spec.epsilon:g}"
        epsilon = measured.epsilon_upper
        sentence = f"The design for {name} has a measured epsilon of {epsilon!r}."
        _expect(measured.meets_spec, sentence)
        bias = measured.bias_upper
        sentence = f"The design for {name} has a bias of {bias!r}."
        _expect(spec.bias != "exact" or bias <= 1e-9, sentence)
    return f"{len(designs)} certified in exact arithmetic"


def account_holds() -> str:
    """Compare the account with two closed forms of the one-bit mechanism, from the private side."""
    _compare_account(Norm.L2, 1e-5, 50, FIFTY_ONE_BIT_RELEASES)
    _compare_account(Norm.L1, 0.0, 1, PURE_ONE_BIT)
    return (
        f"epsilon {FIFTY_ONE_BIT_RELEASES:.6f} (50 releases, delta 1e-05) and "
        f"{PURE_ONE_BIT:.6f} (1 release, delta 0) met from above"
    )


def _compare_account(norm: Norm, delta: float, times: int, exact: float) -> None:
    """Refuse an account of one-bit releases below ``exact``, or far above it."""
    mechanism = InterpolatedMVU(_shipped(DesignSpec(2, 1, 1.0)), Ball(norm, 1.0, 1000))
    cost = mechanism.privacy(Adjacency.ZERO_OUT)
    epsilon = Account(Target(math.inf, delta, "zero-out")).spend(cost, times).epsilon()
    close = exact * (1 - 1e-14) <= epsilon <= exact * (1 + ACCOUNT_TOLERANCE)
    sentence = (
        f"The ledger says epsilon {epsilon!r} for {times} releases on an {norm.value} ball at "
        f"delta {delta:g}, zero-out; the closed form is {exact!r}."
    )
    _expect(close, sentence)


def payload_holds(rng: RandomBits | None) -> str:
    """Encode the wire format's example, send a payload there and back, and damage it."""
    table = np.array([[255.0, 1.0], [1.0, 255.0]]) / 256
    design = Design(DesignSpec(2, 1, 4.0), table, np.array([0.0, 1.0]))
    example = Uplink(InterpolatedMVU(design, Ball(Norm.L2, 1.5, 21), 2.0, decoder="alphabet"))
    sent = example.send(np.linspace(-1.0, 2.0, 21).astype(np.float32), seeded_rng(0))
    _expect(sent == EXAMPLE, "The example of the wire format was encoded into other bytes.")
    mechanism = InterpolatedMVU(_shipped(DesignSpec(2, 1, 1.0)), Ball(Norm.L2, 1.0, DIMENSION))
    uplink = Uplink(mechanism)
    data = uplink.send(np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32), rng)
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


def releases_hold(rng: RandomBits | None) -> str:
    """Send a known update many times, and compare mean and variance with what is stated.

    By Bernstein's inequality a coordinate's mean of `RELEASES` is more than `DEVIATIONS` standard
    deviations off with probability below 1e-12. The mean of the squared deviations is allowed
    `SPREAD`, over ten deviations of its own.
    """
    mechanisms = _released()
    for mechanism in mechanisms:
        name = type(mechanism).__name__
        uplink = Uplink(mechanism)
        update = mechanism.ball.clip(np.linspace(-0.1, 0.1, RELEASED))
        values = np.array([uplink.receive([uplink.send(update, rng)]) for _ in range(RELEASES)])
        expected = np.array([mechanism.expectation(value) for value in update.tolist()])
        variance = np.array([mechanism.variance(value) for value in update.tolist()])
        errors = np.abs(values.mean(axis=0) - expected) / np.sqrt(variance / RELEASES)
        worst = float(errors.max())
        sentence = f"Releases of {name} are off by {worst:.1f} standard deviations."
        _expect(worst <= DEVIATIONS, sentence)
        spread = float((np.square(values - expected).mean(axis=0) / variance).mean())
        sentence = f"Releases of {name} have {spread:.2f} times the variance that is stated."
        _expect(abs(spread - 1) <= SPREAD, sentence)
    return (
        f"{len(mechanisms)} mechanisms, {RELEASES} releases each over the real path, "
        f"false alarm below {FALSE_ALARM:g}"
    )


def _released() -> tuple[Mechanism, ...]:
    ball = Ball(Norm.L2, 1.0, RELEASED)
    profile = Profile.from_weights([-0.5, 0.6, 1.4], [1.0, 1.5, 2.5, 4.0])
    return (
        InterpolatedMVU(_shipped(DesignSpec(2, 1, 1.0)), ball),
        InterpolatedMVU(_shipped(DesignSpec(8, 3, 5.0)), ball),
        VectorMVU(profile, ball, keep=64),
        Gaussian(ball, 1.0),
    )


def _shipped(spec: DesignSpec) -> Design:
    design = shipped(spec)
    if design is None:
        raise QuietbitError(f"The shipped design for {spec!r} is missing.")
    return design
