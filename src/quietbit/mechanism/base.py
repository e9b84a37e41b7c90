"""What a mechanism is: a randomised map from a ball to codes that carries its own privacy curve.

Idea     the public choices are fields, the private update and the random words are arguments; everything
         wrong with an update is said before a word is drawn.
Symbols  d = dimension of the ball; b = bits per code.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import Codes, FloatArray, FloatVector
from quietbit._validate import require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.clipping import Ball, check_update, refuse_outside
from quietbit.privacy.curve import PrivacyCurve
from quietbit.privacy.guarantee import Adjacency

__all__ = ["Mechanism", "check_adjacency", "check_codes", "check_inside", "check_rng", "code_type"]


@runtime_checkable
class Mechanism(Protocol):
    """A release: `encode` on the client, `decode` on the server, `privacy` for whoever asks.

    ``decode`` needs nothing but codes and the mechanism's public fields.
    """

    @property
    def domain(self) -> Ball:
        """Where updates must lie."""
        ...

    @property
    def bits(self) -> int:
        """Bits per code."""
        ...

    @property
    def code_count(self) -> int:
        """How many codes a release has: the dimension, except where a mechanism pads."""
        ...

    def encode(self, update: FloatArray, rng: RandomBits) -> Codes:
        """Randomised codes of an update in the ball; any other is refused before a word is drawn."""
        ...

    def decode(self, codes: Codes) -> FloatArray:
        """The server's estimate of the update, in the shape of the codes."""
        ...

    def privacy(self, adjacency: Adjacency) -> PrivacyCurve:
        """The certified curve of one release."""
        ...

    def expectation(self, value: float) -> float:
        """The mean of what decoding gives for an update's coordinate of this value."""
        ...

    def variance(self, value: float) -> float:
        """Its variance."""
        ...


def check_inside(ball: Ball, update: Any) -> NDArray[Any]:
    """The update as an array, refused unless its type, shape, entries and norm are those of the ball."""
    array = check_update(update, ball.dimension)
    if not ball.holds(array):
        raise refuse_outside(ball)
    return array


def check_rng(rng: Any) -> None:
    """Refuse something that cannot be drawn from, such as a seed."""
    require(hasattr(rng, "draw"), "rng", rng, "a source of random bits, from secure_rng() or seeded_rng(seed)")


def check_adjacency(adjacency: Any) -> None:
    """Refuse an adjacency that is not spelt out."""
    require(isinstance(adjacency, Adjacency), "adjacency", adjacency, "an Adjacency")


def code_type(bits: int) -> Any:
    """The narrowest unsigned type that holds codes of this width."""
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32


def check_codes(codes: Any, bits: int, count: int) -> NDArray[Any]:
    """Codes as an unsigned array of ``count`` entries, each below 2^bits; anything else is refused."""
    array = np.asarray(codes)
    require(array.dtype.kind in "iu", "type of the codes", str(array.dtype), "whole numbers")
    require(array.size == count, "number of codes", array.size, f"{count}")
    require(int(array.min()) >= 0, "smallest code", int(array.min()), "at least 0")
    require(int(array.max()) < 2**bits, "largest code", int(array.max()), f"below 2^{bits}")
    return array.astype(code_type(bits), copy=False)


def check_value(ball: Ball, value: float) -> float:
    """A coordinate's value: finite, and at most the radius in magnitude."""
    number = float(value)
    require(abs(number) <= ball.radius, "value of a coordinate", value, f"at most {ball.radius!r} in magnitude")
    return number


def lookup(table: FloatVector, codes: NDArray[Any]) -> FloatArray:
    """The table's entry for every code."""
    return np.asarray(table[codes])
