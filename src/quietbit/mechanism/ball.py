"""The unit ball that mechanisms act on, the clip that scales updates to it, and exact clipping.

Idea     every mechanism lives on the unit ball. A clip is a public number beside it: an update is
         clipped to that norm and divided by it, and what is decoded is multiplied by it. The cost
         is that of the unit ball, whatever the clip. Sensitivity is a statement about real numbers,
         so membership is decided exactly: by the kernels' norm where its error cannot matter,
         otherwise by an exactly rounded sum.
Symbols  C = clip; N' = the kernels' norm of an update, within NORM_ERROR of the true norm N.
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
    "check_clip",
    "check_norm",
    "clipped_pieces",
    "own_copy",
    "usual_kernel",
]

# So that updates can be rotated in single precision.
MOST_CLIP = 1e27
LEAST_CLIP = 1e-27
MAX_DIMENSION = 2**40
ROUNDING = 2.0**-50  # more than the product of two doubles is off by
TINY = 2.0**-480  # of the clip; smaller magnitudes are compared as this


class Norm(CheckedEnum):
    """The norm that bounds an update."""

    L1 = "l1"
    L2 = "l2"

    def __init__(self, word: Any) -> None:
        """Set the order of the norm as a number."""
        self.order: Literal[1, 2] = 1 if word == "l1" else 2


AnyFloats: TypeAlias = NDArray[Any]  # floats of any precision


def check_clip(value: Any) -> float:
    """Return a clip, the largest norm of an update: from 1e-27 to 1e27."""
    return check_real(value, "clip", at_least=LEAST_CLIP, at_most=MOST_CLIP)


def _dimension(value: int) -> int:
    return check_int(value, "dimension", 1, MAX_DIMENSION)


@final
@frozen
class Ball:
    """All vectors of ``dimension`` entries whose norm is at most 1, or at most a clip.

    Updates may have any shape with that many entries, and are float16, float32 or float64.

    >>> Ball(Norm.L2, 2).clip(np.array([3.0, 4.0])).round(6).tolist()
    [0.6, 0.8]
    """

    norm: Norm = field(converter=Norm)
    dimension: int = field(converter=_dimension)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], norm: Norm = Norm.L2) -> Ball:
        """Return the ball of a model's updates from its parameters by name.

        For example ``Ball.of(model.state_dict())``. Arrays that are not trainable (running
        statistics, counters, masks) are refused; the error names all of them.

        >>> Ball.of({"weight": np.zeros((3, 2)), "bias": np.zeros(3)}).dimension
        9
        """
        named = isinstance(parameters, Mapping)
        require(named, "parameters", type(parameters).__name__, "a dict of arrays by name")
        for name, array in parameters.items():
            is_array = hasattr(array, "shape") and hasattr(array, "dtype")
            require(is_array, f"parameter {name!r}", type(array).__name__, "an array")
        check_parameters((str(name), dtype_name(array)) for name, array in parameters.items())
        return cls(norm, sum(math.prod(array.shape) for array in parameters.values()))

    def contains(self, update: FloatArray, clip: float = 1.0) -> bool:
        """Return whether the exact norm is at most the clip; refuse what `clip` refuses."""
        _, inside = self._locate(_checked(update, self.dimension), check_clip(clip))
        return inside

    def clip(self, update: FloatArray, clip: float = 1.0) -> FloatArray:
        """Return a copy of the update, scaled down and rounded towards zero if it is too long.

        Shape and type stay. A zero vector stays zero; NaN, infinity, a norm beyond the largest
        double, an array without axes and a wrong number of entries are refused.
        """
        longest = check_clip(clip)
        checked = _checked(update, self.dimension)
        measured, inside = self._locate(checked, longest)
        if inside:
            return np.array(checked, copy=True)
        # Leave room for the rounding of the product and for a second measurement of the norm.
        factor = clip_factor(measured, longest * (1 - 8 * NORM_ERROR)) * (1 - 2.0**-50)
        product = checked.astype(np.float64) * factor
        result = product.astype(checked.dtype)
        outward = np.abs(result.astype(np.float64)) > np.abs(product)
        return np.where(outward, np.nextafter(result, np.zeros_like(result)), result)

    def check_coordinate(self, value: float) -> float:
        """Return the value of one coordinate, in clips; refuse it outside the unit ball."""
        number = float(value)
        require(abs(number) <= 1, "value of a coordinate", value, "at most 1 in magnitude")
        return number

    def _locate(self, checked: AnyFloats, clip: float) -> tuple[float, bool]:
        """Return the measured norm, and whether the true norm is at most the clip."""
        measured = usual_kernel().norm(checked, self.norm.order)
        if abs(measured - clip) > 4 * NORM_ERROR * clip:
            return measured, measured < clip
        values = checked.reshape(-1).astype(np.float64)
        return measured, _exactly_inside(values, self.norm, clip)


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


def _exactly_inside(values: FloatVector, norm: Norm, clip: float) -> bool:
    """Compare the exact norm with the clip: `math.fsum` rounds once, so its sign is exact."""
    # A power of two: scaling is exact while nothing underflows.
    shift = 2.0 ** -math.frexp(clip)[1]
    scaled = np.abs(values) * shift
    bound = clip * shift
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


def clipped_pieces(
    ball: Ball, parts: Sequence[AnyFloats], clip: float, kernel: Kernel
) -> Callable[[int, int], FloatVector]:
    """Return a reader of ranges of the clipped update in clips, as doubles from a private copy."""
    update = own_copy(parts)
    norm = kernel.norm(update, ball.norm.order)
    factor = clip_factor(norm, clip)
    if factor < 1.0 or clip != 1.0:
        # The margin keeps the vector in the unit ball after its products are rounded.
        factor = clip_factor(norm, clip * (1 - ROUNDING)) / clip
    return lambda start, stop: update[start:stop].astype(np.float64) * factor
