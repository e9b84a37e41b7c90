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
from typing import NamedTuple, TypeAlias

import numpy as np

from quietbit.design.certify import certify
from quietbit.design.profile import Profile
from quietbit.design.solve import catalogue, shipped
from quietbit.design.table import Design, DesignSpec
from quietbit.errors import InvalidPayload, QuietbitError
from quietbit.kernel.base import packed_size
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
# The chi-square law is a limit; at 10,000 expected counts and more its tail is off by far less than
# this margin.
DRAWS = 400_000
LEAST_EXPECTED = 10_000
ASYMPTOTIC_MARGIN = 1000
SEED = 20230723
DIMENSION = 50_003  # not multiples of 8
FEW = 2_003
RELEASED = 35  # coordinates
RELEASES = 400
DEVIATIONS = 9.0
SPREAD = 0.15
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


def self_test(report: Progress = lambda *_: None, rng: RandomBits | None = None) -> list[Outcome]:
    """Run every check; random words are the operating system's unless given."""
    checks = {
        "kernels agree bit for bit": kernels_agree,
        "codes follow the formula": formula_holds,
        "sampled frequencies": lambda: frequencies(secure_rng() if rng is None else rng),
        "shipped designs": designs_hold,
        "privacy account": account_holds,
        "payload": lambda: payload_holds(rng),
        "mean and variance of releases": lambda: releases_hold(rng),
    }
    return run_checks(checks, report)


def run_checks(
    checks: Mapping[str, Callable[[], str]], report: Progress = lambda *_: None
) -> list[Outcome]:
    """Return the outcome of each check, which returns what it found; an exception is a failure with its message."""
    outcomes = []
    for place, (name, check) in enumerate(checks.items()):
        report(place / len(checks), name)
        start = time.perf_counter()
        try:
            detail = check()
            passed = True
        except Exception as error:  # report anything that a broken installation raises
            own = isinstance(error, QuietbitError)
            if own:
                detail = str(error)
            else:
                detail = f"{type(error).__name__}: {error}"
            passed = False
        outcomes.append(Outcome(name, passed, detail, time.perf_counter() - start))
    report(1.0, "done")
    return outcomes


def _expect(condition: object, sentence: str) -> None:
    if not condition:
        raise QuietbitError(sentence)


def kernels_agree() -> str:
    """Compare codes and bytes of every kernel with those of the reference, from the same words."""
    reference = ReferenceKernel()
    default = default_kernel()
    others = (name for name, reason in kernel_support().items() if not reason)
    kernels = [
        default,
        *(select(name) for name in others if name not in (default.name, reference.name)),
    ]
    inputs = np.random.default_rng(SEED).normal(scale=0.4, size=DIMENSION).astype(np.float32)
    for spec in (DesignSpec(2, 1, 1.0), DesignSpec(8, 3, 5.0)):
        sampler = Sampler.from_design(_shipped(spec), 1.0, 0.0, 1.0)
        expected = reference.sample(sampler, inputs, seeded_rng(SEED), factor=0.75)
        stored = np.frombuffer(reference.pack(expected, spec.output_bits), dtype=np.uint8)
        for kernel in kernels:
            packed = np.zeros(packed_size(spec.output_bits, DIMENSION), dtype=np.uint8)
            kernel.sample_packed(sampler, inputs, seeded_rng(SEED), packed, factor=0.75)
            off = np.count_nonzero(
                kernel.sample(sampler, inputs, seeded_rng(SEED), factor=0.75) != expected
            )
            _expect(
                off == 0,
                f"Kernel {kernel.name} gave {off:,} of {DIMENSION:,} codes otherwise than the reference.",
            )
            _expect(
                np.array_equal(packed, stored),
                f"Kernel {kernel.name} packed codes otherwise than the reference.",
            )
    return f"{', '.join(kernel.name for kernel in kernels)}: {DIMENSION:,} codes at 1 and at 3 bits"


def formula_holds() -> str:
    """Compare codes with those of a plain softmax, which shares no code with kernels, on the same words."""
    kernel = default_kernel()
    mechanism = InterpolatedMVU(_shipped(DesignSpec(8, 3, 5.0)), Ball(Norm.L2, 1.0, FEW), beta=3.0)
    update = mechanism.ball.clip(np.random.default_rng(SEED).normal(size=FEW))
    codes = kernel.sample(mechanism.sampler, update, seeded_rng(SEED))
    block = seeded_rng(SEED).draw(FEW)
    ties = block.ties(np.arange(FEW)) & np.uint64(2**48 - 1)
    uniform = block.primary(0, FEW) * 2.0**-16 + ties * 2.0**-64
    for code, value, place in zip(codes.tolist(), update.tolist(), uniform.tolist(), strict=True):
        found = int(np.count_nonzero(place >= np.cumsum(mechanism.distribution(value))[:-1]))
        _expect(
            code == found, f"Kernel {kernel.name} gave code {code} where the law gives {found}."
        )
    return f"{kernel.name}: {FEW:,} codes recomputed from their words"


def frequencies(rng: RandomBits) -> str:
    """Compare codes drawn at every level with the rows of the table, by Pearson's chi-square."""
    from scipy.stats import chi2  # slow to import, and needed here alone

    kernel = default_kernel()
    worst = 0.0
    cells = 0
    for spec in (DesignSpec(2, 1, 1.0), DesignSpec(8, 2, 3.0)):
        design = _shipped(spec)
        statistic = 0.0
        sampler = Sampler.from_design(design, 1.0, 0.0, 1.0)
        expected = DRAWS * design.probabilities
        _expect(expected.min() >= LEAST_EXPECTED, "Counts are too small for the chi-square law.")
        for level, row in zip(spec.levels.tolist(), expected, strict=True):
            codes = kernel.sample(sampler, np.full(DRAWS, level - 0.5), rng)
            counts = np.bincount(codes.reshape(-1), minlength=row.size)
            _expect(
                counts.size == row.size,
                f"A code lies outside the {row.size} symbols of the design.",
            )
            statistic += float((np.square(counts - row) / row).sum())
        freedom = expected.shape[0] * (expected.shape[1] - 1)
        limit = float(chi2.isf(FALSE_ALARM / (2 * ASYMPTOTIC_MARGIN), freedom))
        sentence = (
            f"Codes of {spec.output_bits} bits do not follow the table: chi-square {statistic:.1f}"
        )
        _expect(
            statistic <= limit, f"{sentence}, above {limit:.1f}, with {freedom} degrees of freedom."
        )
        worst = max(worst, statistic / limit)
        cells = cells + freedom
    return f"chi-square at most {worst:.2f} of its limit, {cells} degrees of freedom, false alarm below {FALSE_ALARM:g}"


def designs_hold() -> str:
    """Certify that every design meets its epsilon and has exactly the bias it states."""
    designs = list(catalogue())
    for design in designs:
        measured = certify(design)
        spec = design.spec
        name = f"{spec.input_levels} levels, {spec.output_bits} bits, epsilon {spec.epsilon:g}"
        _expect(
            measured.meets_spec,
            f"The design for {name} has a measured epsilon of {measured.epsilon_upper!r}.",
        )
        exact = spec.bias != "exact" or measured.bias_upper <= 1e-9
        _expect(exact, f"The design for {name} has a bias of {measured.bias_upper!r}.")
    _expect(len(designs) > 0, "No design ships with this installation.")
    return f"{len(designs)} certified in exact arithmetic"


def account_holds() -> str:
    """Compare the account with two closed forms of the one-bit mechanism, from the private side."""
    found = []
    for norm, delta, times, known in (
        (Norm.L2, 1e-5, 50, FIFTY_ONE_BIT_RELEASES),
        (Norm.L1, 0.0, 1, PURE_ONE_BIT),
    ):
        cost = InterpolatedMVU(_shipped(DesignSpec(2, 1, 1.0)), Ball(norm, 1.0, 1000)).privacy(
            Adjacency.ZERO_OUT
        )
        epsilon = Account(Target(math.inf, delta, "zero-out")).spend(cost, times=times).epsilon()
        what = f"{times} releases on an {norm.value} ball at delta {delta:g}, zero-out"
        close = known * (1 - 1e-14) <= epsilon <= known * (1 + ACCOUNT_TOLERANCE)
        _expect(
            close, f"The ledger says epsilon {epsilon!r} for {what}; the closed form is {known!r}."
        )
        found.append(f"{known:.6f} ({times} releases, delta {delta:g})")
    return f"epsilon {' and '.join(found)} met from above"


def payload_holds(rng: RandomBits | None) -> str:
    """Encode the wire format's example, send a payload there and back, and check that a flipped bit is refused."""
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
    decoded = mechanism.values[payload.codes()]
    _expect(
        np.array_equal(uplink.receive([data]), decoded),
        "The mean of one payload is not its decoded update.",
    )
    flipped = bytearray(data)
    flipped[-2] ^= 4
    try:
        uplink.receive([bytes(flipped)])
    except InvalidPayload:
        return f"{len(EXAMPLE)} known bytes, {size:,} there and back, a flipped bit refused"
    raise QuietbitError("A payload with a flipped bit was accepted.")


def releases_hold(rng: RandomBits | None) -> str:
    """Send a known update many times over the real path, and compare mean and variance with what is stated.

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
        _expect(
            errors.max() <= DEVIATIONS,
            f"Releases of {name} are off by {errors.max():.1f} standard deviations.",
        )
        spread = float((np.square(values - expected).mean(axis=0) / variance).mean())
        _expect(
            abs(spread - 1) <= SPREAD,
            f"Releases of {name} have {spread:.2f} times the variance that is stated.",
        )
    return f"{len(mechanisms)} mechanisms, {RELEASES} releases each over the real path, false alarm below {FALSE_ALARM:g}"


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
