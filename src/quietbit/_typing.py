"""Array aliases used in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.floating[Any]]
FloatVector: TypeAlias = NDArray[np.float64]
FloatMatrix: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.unsignedinteger[Any]]

__all__ = ["Codes", "FloatArray", "FloatMatrix", "FloatVector"]
