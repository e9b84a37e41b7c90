"""The decorators for compiled functions: numba without the lock, cached on disk by a digest of the sources.

Idea     a second process finds compiled code ready. numba's cache notices a change of the file that defines a function
         but not of the files it calls into; a digest of all sources beside it in the name makes stale code impossible.
         `NUMBA_CACHE_DIR` moves the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from quietbit.errors import require_module

__all__ = ["compiled", "compiled_fast", "compiled_sum"]

Function = TypeVar("Function", bound=Callable[..., Any])


@lru_cache(maxsize=8)
def _digest(*folders: Path) -> str:
    """Hash every file beside the compiled ones: a function may call into, or take constants from, any of them."""
    files = sorted(file for folder in set(folders) for kind in ("*.py", "*.bin") for file in folder.glob(kind))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _compile(fastmath: Any, function: Function) -> Function:
    numba = require_module("numba", "cpu")
    here, there = Path(__file__).parent, Path(function.__code__.co_filename).parent
    function.__qualname__ = f"{function.__qualname__}_{_digest(here, there)}"
    options = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": fastmath}
    return cast(Function, numba.njit(**options)(function))


compiled = partial(_compile, False)  # IEEE arithmetic as written: nothing fused, nothing reordered
compiled_fast = partial(_compile, {"contract", "nsz"})  # multiply-adds may be fused: error bounds hold either way
compiled_sum = partial(_compile, {"contract", "nsz", "reassoc"})  # and sums be in any order
