"""The decorator for compiled functions: numba, no lock held, kept on disk under names that follow sources.

Idea     a second process finds machine code ready. numba's own cache notices a change of the file a function
         stands in but not of the files it calls into; adding a digest of all compiled sources to the name
         makes stale code impossible. `NUMBA_CACHE_DIR` moves the cache; without it numba keeps it beside the
         package, or in the user's cache folder where that is read-only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from quietbit._validate import require_module

__all__ = ["compiled", "compiled_fast"]

SOURCES = (
    *("jit.py", "law.py", "norm.py", "compiled_law.py", "compiled_sampling.py", "compiled_bits.py"),
    *("cohort_law.py", "cohort_plan.py", "cohort_words.py", "compiled_cohort.py", "compiled_cohort_codes.py"),
    *("compiled_transform.py", "compiled_expand.py", "quantile.py"),
)
Function = TypeVar("Function", bound=Callable[..., Any])


@lru_cache(maxsize=1)
def _digest() -> str:
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in SOURCES if (folder / name).exists())
    return hashlib.sha256(text).hexdigest()[:12]


def _compile(function: Function, fastmath: Any) -> Function:
    numba = require_module("numba", "cpu")
    function.__qualname__ = f"{function.__qualname__}_{_digest()}"
    options = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": fastmath}
    return cast(Function, numba.njit(**options)(function))


def compiled(function: Function) -> Function:
    """Compile with IEEE arithmetic as written: nothing fused, nothing reordered."""
    return _compile(function, False)


def compiled_fast(function: Function) -> Function:
    """Compile with fused multiply-adds allowed: for arithmetic whose error bound does not care."""
    return _compile(function, {"contract", "nsz"})
