"""The C kernel as Python functions: structures, signatures, and the library itself.

Idea     `quietbit.h` documents every function; this file only repeats the types. The library is
         loaded once, found beside its sources or built there (`build.py`), and refused if its
         self-test fails: a build that fuses products and sums would give other codes than the
         reference, and with them another privacy guarantee. Pointers are passed as addresses, of
         arrays that the caller keeps alive during the call.
Sets     the best instruction set of the processor is chosen at load. The environment variable
         QUIETBIT_INSTRUCTION_SET (sse2, avx2 or avx512) limits it, for tests and benchmarks.
         Results do not depend on it.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    c_char,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path
from typing import Any

from quietbit.errors import MissingDependency, check_known
from quietbit.kernel.c.build import BuildFailed, build_library

__all__ = [
    "Cells",
    "Law",
    "Part",
    "Polynomial",
    "Random",
    "Rotation",
    "Sampling",
    "Update",
    "address",
    "library",
    "load",
]

VERSION = 3
MAX_COEFFICIENTS = 18
INSTRUCTION_SET = "QUIETBIT_INSTRUCTION_SET"
INSTRUCTION_SETS = {"sse2": 1, "avx2": 2, "avx512": 3}


class Polynomial(ctypes.Structure):
    """`qb_polynomial`."""

    _fields_ = (
        ("gain", c_double),
        ("shift", c_double),
        ("low", c_float),
        ("coefficient", c_float * MAX_COEFFICIENTS),
        ("count", c_int32),
        ("width", c_int32),
    )


class Cells(ctypes.Structure):
    """`qb_cells`."""

    _fields_ = (
        *((name, c_double) for name in ("gain", "low", "high", "inverse", "offset")),
        *((name, c_void_p) for name in ("start", "step", "lowest", "highest", "code")),
        ("half", c_float),
        ("cells", c_int32),
        ("bits", c_int32),
    )


class Law(ctypes.Structure):
    """`qb_law`."""

    _fields_ = (
        ("gain", c_double * 4),
        ("clamp", c_double * 2),
        *(
            (name, c_void_p)
            for name in ("knots", "knots_tail", "base", "base_tail", "slope", "slope_tail")
        ),
        ("levels", c_int32),
        ("bits", c_int32),
    )


class Random(ctypes.Structure):
    """`qb_random`."""

    _fields_ = (
        ("given", c_void_p),
        ("given_ties", c_void_p),
        ("key", c_uint32 * 8),
        ("seeded", c_uint64 * 2),
        ("seeded_ties", c_uint64 * 2),
        ("is_seeded", c_int32),
    )


class Part(ctypes.Structure):
    """`qb_part`."""

    _fields_ = (
        ("values", c_void_p),
        *((name, c_int64) for name in ("start", "size", "block")),
        ("kind", c_int32),
    )


class Update(ctypes.Structure):
    """`qb_update`."""

    _fields_ = (("parts", ctypes.POINTER(Part)), ("count", c_int64), ("size", c_int64))


class Rotation(ctypes.Structure):
    """`qb_rotation`."""

    _fields_ = (
        ("factor", c_double),
        ("signs", c_void_p),
        ("last_signs", c_void_p),
        ("size", c_int64),
        ("block", c_int64),
    )


class Sampling(ctypes.Structure):
    """`qb_sampling`."""

    _fields_ = (
        ("polynomial", ctypes.POINTER(Polynomial)),
        ("cells", ctypes.POINTER(Cells)),
        ("law", ctypes.POINTER(Law)),
        ("rotation", ctypes.POINTER(Rotation)),
        ("random", ctypes.POINTER(Random)),
        ("bits", c_int32),
        ("order", c_int32),
    )


SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "qb_version": (c_int, ()),
    "qb_self_test": (c_int, ()),
    "qb_instruction_set": (c_int, (c_int,)),
    "qb_stream_words": (None, (c_void_p, c_uint64, c_uint64, c_size_t, c_void_p)),
    "qb_philox": (None, (c_void_p, c_uint64, c_size_t, c_void_p)),
    "qb_seed_key": (None, (c_void_p, c_size_t, c_void_p)),
    "qb_block_sums": (None, (c_void_p, c_double, c_int, c_void_p, c_int64, c_int64)),
    "qb_exact_sum": (c_double, (c_void_p, c_size_t)),
    "qb_clip_factor": (c_double, (c_double, c_double, c_int)),
    "qb_gain": (None, (c_double, c_double, c_void_p)),
    "qb_sample": (c_double, (c_void_p, c_void_p, c_void_p, c_int64, c_int64)),
    "qb_pack": (None, (c_void_p, c_size_t, c_int, c_void_p)),
    "qb_unpack": (None, (c_void_p, c_size_t, c_int, c_void_p)),
    "qb_accumulate": (
        None,
        (c_void_p, c_int, c_int, c_void_p, c_void_p, c_int, c_size_t, c_size_t),
    ),
    "qb_flip": (None, (c_void_p, c_double, c_void_p, c_void_p, c_int, c_int64, c_int64)),
    "qb_transform_parts": (c_size_t, (c_size_t, c_size_t, c_int)),
    "qb_transform": (
        None,
        (c_void_p, c_int, c_size_t, c_size_t, c_int, c_void_p, c_int, c_size_t, c_size_t),
    ),
    "qb_expand_words": (None, (c_void_p, c_size_t, c_void_p)),
    "qb_expand_normals": (None, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "qb_first_accepted": (
        c_int64,
        (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p),
    ),
    "qb_add_seeds": (
        None,
        (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_double, c_void_p, c_void_p),
    ),
    "qb_noise_steps": (
        None,
        (c_void_p, c_void_p, c_size_t, c_double, c_double, c_int, c_void_p, c_void_p, c_void_p),
    ),
}


_NOTHING = c_char * 0


def address(array: Any) -> int:
    """Return the address of a numpy array's first number; the array must be contiguous."""
    try:
        return ctypes.addressof(_NOTHING.from_buffer(array))  # twice as fast as the other way
    except (TypeError, ValueError):  # the array is read-only
        place: int = array.__array_interface__["data"][0]
        return place


def load(path: Path) -> Any:
    """Load a library file; refuse a wrong version, or one that rounds in another way."""
    try:
        loaded: Any = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise MissingDependency(f"The C kernel {path.name} cannot be loaded: {error}.") from error
    version = loaded.qb_version()
    if version != VERSION:
        raise MissingDependency(
            f"The C kernel {path.name} has version {version}, expected {VERSION}: build it again."
        )
    failed = loaded.qb_self_test()
    if failed != 0:
        raise MissingDependency(
            f"The C kernel {path.name} fails check {failed} of its self-test, so its codes would "
            "differ from the reference: build it with -ffp-contract=off and without -ffast-math."
        )
    return loaded


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the C kernel, built if needed; `MissingDependency` says why it cannot be built."""
    try:
        path = build_library()
    except BuildFailed as error:
        raise MissingDependency(
            f"The C kernel is not built, because {error}. Install a C compiler and run "
            "`python -m quietbit.kernel.c`."
        ) from error
    loaded = load(path)
    limit = os.environ.get(INSTRUCTION_SET)
    if limit is not None:
        check_known(limit, INSTRUCTION_SETS, INSTRUCTION_SET)
        loaded.qb_instruction_set(INSTRUCTION_SETS[limit])
    return loaded
