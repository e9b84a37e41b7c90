"""Samplers that are not what they claim: each a way from update to payload that claims an honest
mechanism's law.

A tampered mechanism samples, an honest one is asked for mean, variance and privacy; or the random
bits are spoilt.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from quietbit import Gaussian, InterpolatedMVU
from quietbit.design.table import Design
from quietbit.kernel.rng import seeded_rng
from quietbit.wire.uplink import Uplink
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam


@dataclass(frozen=True)
class Tampered:
    """Sends and receives with one mechanism, and claims to be another."""

    mechanism: Any
    real: Any
    clip: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "uplink", Uplink(self.real, clip=self.clip))

    def send(self, update, rng):
        return self.uplink.send(update, rng)

    def receive(self, payloads):
        return self.uplink.receive(payloads)


def _with(mechanism, **changed):
    """A copy with some fields replaced and the others, such as decoded values, left as they
    were.
    """
    other = copy.copy(mechanism)
    for name, value in changed.items():
        object.__setattr__(other, name, value)
    return other


def stronger(honest, factor=1.1):
    """A response ``factor`` times too strong, or noise too small by it."""
    if isinstance(honest, InterpolatedMVU):
        steep = InterpolatedMVU(honest.design, honest.ball, honest.beta * factor, honest.clamp)
        return Tampered(honest, _with(honest, sampler=steep.sampler))
    if isinstance(honest, DitheredMVU):
        logs = np.log(honest.design.probabilities)
        middle = logs.mean(axis=0)
        rows = np.exp(middle + factor * (logs - middle))
        design = Design(
            honest.design.spec, rows / rows.sum(axis=1, keepdims=True), honest.design.alphabet
        )
        return Tampered(honest, DitheredMVU(design, honest.ball))
    return Tampered(honest, _louder(honest, factor))


def _louder(honest, factor):
    ball = honest.ball
    if isinstance(honest, Sign):
        return Sign(_louder(honest.inner, factor))
    if isinstance(honest, Gaussian):
        return Gaussian(ball, honest.noise_multiplier / factor)
    if isinstance(honest, Laplace):
        return Laplace(ball, honest.scale_multiplier / factor)
    return Skellam(
        ball, honest.noise_multiplier / factor, bits=honest.bits, rotation_seed=honest.rotation_seed
    )


def swapped(honest, first, second):
    """Two rows of the table exchanged."""
    table = honest.design.probabilities.copy()
    table[[first, second]] = table[[second, first]]
    design = Design(honest.design.spec, table, honest.design.alphabet)
    if isinstance(honest, DitheredMVU):
        return Tampered(honest, DitheredMVU(design, honest.ball))
    other = InterpolatedMVU(
        design, honest.ball, honest.beta, honest.clamp, decoder="alphabet"
    )  # the sampler alone counts
    return Tampered(honest, _with(honest, sampler=other.sampler))


def unclipped(honest, factor=4.0):
    """Updates are clipped to a norm that is too large."""
    if isinstance(honest, InterpolatedMVU):
        beta = factor * honest.beta
        wide = InterpolatedMVU(honest.design, honest.ball, beta, honest.clamp, honest.decoder)
        return Tampered(honest, wide, factor)
    if isinstance(honest, DitheredMVU):
        raise NotImplementedError("levels end at the ball's boundary")
    return Tampered(honest, _louder(honest, factor), factor)


class SharedBits:
    """Random bits of which some coordinates get those of another."""

    def __init__(self, seed, pattern):
        self.inner, self.pattern = seeded_rng(seed), pattern

    def draw(self, count):
        block = self.inner.draw(count)
        places = np.arange(count)
        if self.pattern == "next":  # 2 k + 1 has those of 2 k
            source = places // 2 * 2
        elif self.pattern == "eighth":  # k has those of k - 8 in every other group of eight
            source = np.where(places % 16 >= 8, places - 8, places)
        elif self.pattern == "all":
            source = np.zeros(count, dtype=np.int64)
        else:  # pairs far apart, the same in every release
            order = np.random.default_rng(count).permutation(count)
            source = places.copy()
            half = count // 2
            source[order[:half]] = order[half : 2 * half]
        return _Mapped(block, source)


class _Mapped:
    def __init__(self, block, source):
        self.block, self.source = block, source

    def primary(self, start, count):
        return self.block.primary(0, self.source.size)[self.source[start : start + count]]

    def ties(self, indices):
        return self.block.ties(self.source[indices])

    def uniform64(self, stream, start, count):
        size = self.source.size
        if start + count > size:
            return self.block.uniform64(stream, start, count)
        return self.block.uniform64(stream, 0, size)[self.source[start : start + count]]


class RepeatedBits:
    """Random bits that start over after ``period`` draws."""

    def __init__(self, seed, period):
        self.seed, self.period, self.draws = seed, period, 0
        self.inner = seeded_rng(seed)

    def draw(self, count):
        if self.draws % self.period == 0:
            self.inner = seeded_rng(self.seed)
        self.draws += 1
        return self.inner.draw(count)


def names(found):
    """What an audit found to be at fault."""
    return {one.name for one in found.findings if not one.passed}
