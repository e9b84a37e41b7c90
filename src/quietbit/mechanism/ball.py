"""The ball that updates are clipped to before they are randomised, and the exact clipping.

Idea     sensitivity is a statement about real numbers, so membership is decided exactly: by the
         kernels' norm where its error cannot matter, otherwise by an exactly rounded sum.
Symbols  C = radius; N' = the kernels' norm of an update, within NORM_ERROR of the true norm N.
Source   Guo et al. (ICML 2023), section "Vector MVU"; Shewchuk (1997) for sums whose sign is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatArray, FloatVector
from quietbit.arrays import NUMPY_FLOATS, check_parameters, dtype_name
from quietbit.errors import CheckedEnum, check_int, check_real, require
from quietbit.kernel.base import Kernel
from quietbit.kernel.norm import NORM_ERROR, Flat, clip_factor
from quietbit.kernel.sampler import two_product
from quietbit.kernel.select import default_kernel

__all__ = [
    "Ball",
    "Norm",
    "check_ball",
    "check_norm",
    "clipped_pieces",
    "own_copy",
    "own_parts",
    "scaled",
    "usual_kernel",
]

MAX_RADIUS = 1e30  # so that 32-bit floats can hold an update plus its noise
MIN_RADIUS = 1e-30
MAX_DIMENSION = 2**40
ROUNDING = 2.0**-50  # more than the product of two doubles is off by
TINY = 2.0**-480  # of the radius; smaller magnitudes are compared as this


class Norm(CheckedEnum):
    """The norm that bounds an update."""

    L1 = "l1"
    L2 = "l2"

    def __init__(self, word: Any) -> None:
        """Set the order of the norm as a number."""
        self.order: Literal[1, 2] = 1 if word == "l1" else 2


AnyFloats: TypeAlias = NDArray[Any]  # floats of any precision


def _radius(value: float) -> float:
    return check_real(value, "radius", at_least=MIN_RADIUS, at_most=MAX_RADIUS)


def _dimension(value: int) -> int:
    return check_int(value, "dimension", 1, MAX_DIMENSION)


@final
@frozen
class Ball:
    """All vectors of ``dimension`` entries whose norm is at most ``radius``.

    Updates may have any shape with that many entries, and are float16, float32 or float64.

    >>> Ball(Norm.L2, 1.0, 2).clip(np.array([3.0, 4.0])).round(6).tolist()
    [0.6, 0.8]
    """

    norm: Norm = field(converter=Norm)
    radius: float = field(converter=_radius)
    dimension: int = field(converter=_dimension)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], radius: float, norm: Norm = Norm.L2) -> Ball:
        """Return the ball of a model's updates from its parameters by name.

        For example ``Ball.of(model.state_dict(), 1.0)``. Arrays that are not trainable (running
        statistics, counters, masks) are refused; the error names all of them.

        >>> Ball.of({"weight": np.zeros((3, 2)), "bias": np.zeros(3)}, 1.0).dimension
        9
        """
        named = isinstance(parameters, Mapping)
        require(named, "parameters", type(parameters).__name__, "a dict of arrays by name")
        for name, array in parameters.items():
            is_array = hasattr(array, "shape") and hasattr(array, "dtype")
            require(is_array, f"parameter {name!r}", type(array).__name__, "an array")
        check_parameters((str(name), dtype_name(array)) for name, array in parameters.items())
        return cls(norm, radius, sum(math.prod(array.shape) for array in parameters.values()))

    def contains(self, update: FloatArray) -> bool:
        """Return whether the exact norm is at most the radius; refuse what `clip` refuses."""
        _, inside = self._locate(_checked(update, self.dimension))
        return inside

    def clip(self, update: FloatArray) -> FloatArray:
        """Return a copy of the update, scaled down and rounded towards zero if it is too long.

        Shape and type stay. A zero vector stays zero; NaN, infinity, a norm beyond the largest
        double, an array without axes and a wrong number of entries are refused.
        """
        checked = _checked(update, self.dimension)
        measured, inside = self._locate(checked)
        if inside:
            return np.array(checked, copy=True)
        # Leave room for the rounding of the product and for a second measurement of the norm.
        factor = clip_factor(measured, self.radius * (1 - 8 * NORM_ERROR)) * (1 - 2.0**-50)
        product = checked.astype(np.float64) * factor
        result = product.astype(checked.dtype)
        outward = np.abs(result.astype(np.float64)) > np.abs(product)
        return np.where(outward, np.nextafter(result, np.zeros_like(result)), result)

    def check_coordinate(self, value: float) -> float:
        """Return the value of one coordinate; refuse it outside the ball."""
        number = float(value)
        rule = f"at most {self.radius!r} in magnitude"
        require(abs(number) <= self.radius, "value of a coordinate", value, rule)
        return number

    def _locate(self, checked: AnyFloats) -> tuple[float, bool]:
        """Return the measured norm, and whether the true norm is at most the radius."""
        measured = usual_kernel().norm(checked, self.norm.order)
        if abs(measured - self.radius) > 4 * NORM_ERROR * self.radius:
            return measured, measured < self.radius
        values = checked.reshape(-1).astype(np.float64)
        return measured, _exactly_inside(values, self.norm, self.radius)


def check_ball(value: Any) -> Ball:
    """Return the value; refuse it unless it is a ball."""
    require(isinstance(value, Ball), "ball", type(value).__name__, "a Ball")
    return cast(Ball, value)


def check_norm(ball: Ball, norm: Norm, purpose: str) -> None:
    """Refuse a ball of the wrong norm; the rule ends in ``purpose``, "for batches" say."""
    require(ball.norm is norm, "norm of the ball", ball.norm.value, f"{norm.value} {purpose}")


def _checked(update: Any, dimension: int) -> AnyFloats:
    """Return the update as floats; measuring its norm refuses NaN and infinity later."""
    array = np.asarray(update)
    require(array.ndim > 0, "update", f"{array.ndim}-D", "at least 1-D")
    rule = "float16, float32 or float64"
    require(array.dtype.name in NUMPY_FLOATS, "type of the update", str(array.dtype), rule)
    require(array.size == dimension, "number of entries of the update", array.size, f"{dimension}")
    return array


def _exactly_inside(values: FloatVector, norm: Norm, radius: float) -> bool:
    """Compare the exact norm with the radius: `math.fsum` rounds once, so its sign is exact."""
    # A power of two: scaling is exact while nothing underflows.
    shift = 2.0 ** -math.frexp(radius)[1]
    scaled = np.abs(values) * shift
    bound = radius * shift
    small = (scaled < TINY) & (values != 0)
    scaled[small] = TINY  # rounded away from the ball
    if norm is Norm.L1:
        return math.fsum([*scaled.tolist(), -bound]) <= 0
    square, rest = two_product(scaled, scaled)
    limit, limit_rest = two_product(bound, bound)
    return math.fsum([*square.tolist(), *rest.tolist(), -limit, -limit_rest]) <= 0


@lru_cache(maxsize=1)
def usual_kernel() -> Kernel:
    """Return the kernel used when a caller names none; all give the same numbers."""
    return default_kernel()


def own_copy(parts: Sequence[AnyFloats]) -> AnyFloats:
    """Return the parts as one vector in private host memory, which no caller can change.

    A single array keeps its type; several become float32, or float64 where one of them is.
    """
    parts = [part if isinstance(part, np.ndarray) else _from_device(part) for part in parts]
    if len(parts) == 1 and parts[0].dtype != np.uint16:
        return np.array(parts[0]).reshape(-1)
    flat = Flat.of(list(parts))
    return np.array(flat.piece(0, flat.size))


def _from_device(tensor: Any) -> AnyFloats:
    """Copy a tensor's values to the host; half precision is widened."""
    short = tensor.element_size() == 2
    copied: AnyFloats = (tensor.float() if short else tensor).cpu().numpy()
    return copied


def own_parts(parts: Sequence[Any]) -> list[Any]:
    """Return the update as one private part (`own_copy`); tensors on a GPU stay as given."""
    if any(hasattr(part, "is_cuda") for part in parts):
        return list(parts)
    return [own_copy(parts)]


def scaled(parts: Sequence[Any], factor: float) -> list[Any]:
    """Return every part times the factor, rounded once: to float64 if it is that, else float32."""
    return [_scaled(part, factor) for part in parts]


def _scaled(part: Any, factor: float) -> Any:
    if hasattr(part, "is_cuda"):
        wide = part.double() * factor
        if part.element_size() == 8:
            return wide
        return wide.float()
    kind = np.float64 if part.dtype == np.float64 else np.float32
    out = np.empty(part.shape, dtype=kind)
    return np.multiply(part, factor, out=out, dtype=np.float64, casting="same_kind")


def clipped_pieces(
    ball: Ball, parts: Sequence[AnyFloats], kernel: Kernel
) -> Callable[[int, int], FloatVector]:
    """Return a reader of ranges of the clipped update, as doubles from a private copy."""
    update = own_copy(parts)
    norm = kernel.norm(update, ball.norm.order)
    factor = clip_factor(norm, ball.radius)
    if factor < 1.0:  # the margin keeps the vector in the ball after its products are rounded
        factor = clip_factor(norm, ball.radius * (1 - ROUNDING))
    return lambda start, stop: update[start:stop].astype(np.float64) * factor
