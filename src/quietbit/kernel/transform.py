"""The fast Walsh-Hadamard transform and the public random rotation made of it.

Idea     flip signs at random, then mix all coordinates with a Hadamard matrix: whatever the update, no rotated
         coordinate is likely to be large, and a few of them tell as much as any others. The seed is public; rotating
         hides nothing and costs no privacy. The transform works in place, in n log2 n additions, and every
         implementation performs the same additions in the same order: numpy, numba, torch and Triton agree bit for
         bit.
Symbols  n = a power of two; H_n / sqrt(n) is orthogonal, symmetric and its own inverse; D = signs.
Source   Ailon and Chazelle (2006); Suresh et al. (ICML 2017) for distributed means; Pease (1968) for passes of constant
         geometry (`compiled_transform.py`).

Rounding. An entry of the result is a sum of n numbers formed in log2 n additions and one scaling, so its error is at
most (log2 n + 1) u sqrt(sum x^2) to first order, u = 2^-24 in float32 and 2^-53 in float64 (Higham, section 4.2, and
Cauchy-Schwarz): 2^-19 of the norm for n = 2^27 in float32, far below any noise worth adding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, MissingDependency, check_int, require, require_module
from quietbit.kernel.chunks import Flat

__all__ = [
    "hadamard_",
    "hadamard_reference",
    "padded_size",
    "rotate",
    "rotate_back",
    "rotate_back_",
    "rotate_tensor",
    "rotate_update",
    "rotated_rows",
    "signs",
]

CHUNK = 1 << 17  # entries of an update handled at once
LARGEST = 2.0**96  # an entry up to this keeps every sum of 2^31 of them finite in float32
MAX_SIZE = 2**40
REFUSED = "update must be finite everywhere and at most 2^96 once scaled, got another entry."


def padded_size(dimension: int) -> int:
    """The power of two that a vector of this dimension is padded to.

    >>> padded_size(1), padded_size(5), padded_size(8)
    (1, 8, 8)
    """
    return 1 << (check_int(dimension, "dimension", 1, MAX_SIZE) - 1).bit_length()


def hadamard_reference(values: NDArray[Any]) -> NDArray[Any]:
    """The transform of a flat float32 or float64 array, stage by stage; the input is left alone."""
    flat = _check_flat(values)
    size, half = flat.size, 1
    result = flat.copy()
    while half < size:
        pairs = result.reshape(-1, 2, half)
        result = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return np.asarray(result / result.dtype.type(math.sqrt(size)))


def hadamard_(values: Any, threads: int = 1) -> Any:
    """Transform in place, and return, a flat float32 or float64 array or torch tensor whose length is a power of two.

    An array is transformed by numba where it is installed and by numpy where not; a tensor where it lives. Applying the
    transform twice gives the input back, up to rounding.

    >>> hadamard_(np.array([4.0, 2.0, 0.0, 2.0]))
    array([4., 0., 2., 2.])
    """
    if hasattr(values, "is_cuda"):
        return _hadamard_tensor(values, threads)
    flat, workers = _check_flat(values), check_int(threads, "threads", 1, 1024)
    require(flat.flags.writeable and flat.flags.c_contiguous, "array to transform", "another", "writable and in a row")
    code = _machine_code()
    if code is None:
        flat[:] = hadamard_reference(flat)
    else:
        _hadamard_compiled(code, flat, workers)
    return values


def signs(size: int, seed: int) -> FloatVector:
    """Public signs, +1.0 or -1.0: a function of size and seed alone, on every machine."""
    words = _sign_words(check_int(size, "size", 1, MAX_SIZE), seed)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:size]
    return np.where(bits, -1.0, 1.0)


def rotate(vector: FloatVector, seed: int) -> FloatVector:
    """The vector padded with zeros to a power of two and rotated; a zero vector stays zero."""
    given = np.ascontiguousarray(vector, dtype=np.float64)
    padded = np.zeros(padded_size(given.size))
    _signed(given, 1.0, _sign_words(padded.size, seed), padded[: given.size])
    return np.asarray(hadamard_(padded))


def rotate_back(vector: FloatVector, seed: int) -> FloatVector:
    """The inverse, padding included."""
    return np.asarray(rotate_back_(np.array(vector, dtype=np.float64), seed))


def rotate_back_(values: Any, seed: int, threads: int = 1) -> Any:
    """The inverse rotation in place, of an array or tensor, padding included: what a server does once per mean."""
    hadamard_(values, threads)
    if hasattr(values, "is_cuda"):
        values.mul_(_sign_tensor(values, seed))
    else:
        _signed(values, 1.0, _sign_words(values.size, seed), values)
    return values


def rotate_update(
    update: Any,
    seed: int,
    *,
    factor: float = 1.0,
    threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """``factor * update`` rotated, in float32 of the padded length: what a client does before it keeps a few rows.

    The update is an array or a list of arrays as kernels take them (`chunks.py`) and is never copied whole; the product
    is formed in double precision and rounded once. A NaN, an infinite entry or one above 2^96 after scaling is refused,
    and ``out`` is then filled with zeros.
    """
    flat, size = Flat.of(update), 0
    size = padded_size(flat.size)
    require(0.0 <= factor <= 1.0, "factor", factor, "from 0 to 1")
    buffer = np.empty(size, dtype=np.float32) if out is None else out
    fine = buffer.shape == (size,) and buffer.dtype == np.float32 and buffer.flags.c_contiguous
    require(fine and buffer.flags.writeable, "output buffer", buffer.shape, f"{size} writable float32 numbers in a row")
    words = _sign_words(size, seed)
    for start in range(0, flat.size, CHUNK):
        stop = min(flat.size, start + CHUNK)
        piece, part = flat.piece(start, stop), words[start // 32 : -(-stop // 32)]
        if not _signed(piece, float(factor), part, buffer[start:stop]):
            buffer[:] = 0.0
            raise InvalidParameter(REFUSED)
    buffer[flat.size :] = 0.0
    hadamard_(buffer, threads)
    return buffer


def rotate_tensor(update: Any, seed: int, *, factor: float = 1.0) -> Any:
    """`rotate_update` of one torch tensor, on its device: a new float32 tensor of the padded length, the same bits."""
    torch = require_module("torch", "torch")
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    require(update.dtype in kinds, "type of the update", str(update.dtype), "float16, bfloat16, float32 or float64")
    require(0.0 <= factor <= 1.0, "factor", factor, "from 0 to 1")
    scaled = update.detach().reshape(-1).to(torch.float64) * float(factor)
    if not bool((scaled.abs() <= LARGEST).all()):
        raise InvalidParameter(REFUSED)
    buffer = torch.zeros(padded_size(scaled.numel()), dtype=torch.float32, device=update.device)
    buffer[: scaled.numel()] = scaled
    return hadamard_(buffer.mul_(_sign_tensor(buffer, seed)))


def rotated_rows(update: Any, seed: int, factor: float, places: NDArray[np.int64]) -> FloatVector:
    """Some entries of ``factor * update`` rotated, in doubles; tensors are rotated where they are."""
    if all(hasattr(part, "is_cuda") for part in update):
        torch = require_module("torch", "torch")
        whole = torch.cat([part.reshape(-1).float() for part in update])
        kept = rotate_tensor(whole, seed, factor=factor)[torch.from_numpy(places).to(whole.device)]
        return np.asarray(kept.double().cpu().numpy())
    return rotate_update(list(update), seed, factor=factor)[places].astype(np.float64)


def _check_flat(values: Any) -> NDArray[Any]:
    fine = isinstance(values, np.ndarray) and values.dtype in (np.float32, np.float64) and values.ndim == 1
    require(fine, "values", getattr(values, "dtype", type(values).__name__), "a flat array of float32 or float64")
    require(values.size > 0 and values.size & (values.size - 1) == 0, "length", values.size, "a power of two")
    array: NDArray[Any] = values
    return array


@lru_cache(maxsize=1)
def _machine_code() -> ModuleType | None:
    """The compiled functions, or None without numba."""
    try:
        require_module("numba", "cpu")
    except MissingDependency:
        return None
    from quietbit.kernel import compiled_transform

    return compiled_transform


def _hadamard_compiled(code: ModuleType, x: NDArray[Any], threads: int) -> None:
    def spread(task: Callable[[int, int], None], count: int) -> None:
        """Run a task on ranges of ``0 .. count - 1``, one per thread."""
        workers = min(threads, count)
        if workers <= 1:
            task(0, count)
            return
        edges = [count * i // workers for i in range(workers + 1)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(task, edges[:-1], edges[1:]))

    def late(values: NDArray[Any], half: int, one_by_one: bool) -> None:
        """All stages from ``half`` on."""
        while half < values.size:
            rows = min(8, values.size // half)
            chunks = values.size // rows // code.BLOCK
            if one_by_one:
                code.late_stages(values, half, rows, 0, chunks)
            else:
                spread(lambda a, b, h=half, r=rows: code.late_stages(values, h, r, a, b), chunks)  # type: ignore[misc]
            half *= rows

    span = code.SPAN

    def inside_spans(first: int, last: int) -> None:
        for part in (x[at * span : (at + 1) * span] for at in range(first, last)):
            code.early_stages(part)
            late(part, code.BLOCK, one_by_one=True)

    spread(inside_spans, -(-x.size // span))
    late(x, span, one_by_one=False)
    scale, exact = _scale(x.size)
    kind = x.dtype.type
    pieces = -(-x.size // span)
    if exact:
        spread(lambda first, last: code.multiply(x[first * span : last * span], kind(scale)), pieces)
    else:
        spread(lambda first, last: code.divide(x[first * span : last * span], kind(scale)), pieces)


def _scale(size: int) -> tuple[float, bool]:
    """What ends a transform: (1 / sqrt(size), True) to multiply by where that is exact, else (sqrt(size), False)."""
    even = (size.bit_length() - 1) % 2 == 0
    return (1.0 / math.sqrt(size), True) if even else (math.sqrt(size), False)


def _hadamard_tensor(values: Any, threads: int) -> Any:
    torch = require_module("torch", "torch")
    fine = values.dtype in (torch.float32, torch.float64) and values.dim() == 1 and values.is_contiguous()
    require(fine, "tensor", (str(values.dtype), tuple(values.shape)), "flat, contiguous, of float32 or float64")
    size = values.numel()
    require(size > 0 and size & (size - 1) == 0, "length", size, "a power of two")
    plain = values.detach()
    if plain.device.type == "cpu":
        hadamard_(plain.numpy(), threads)
        return values
    if plain.is_cuda and _triton_code() is not None:
        _triton_code().hadamard_stages(plain, *_scale(size))  # type: ignore[union-attr]
        return values
    return _hadamard_torch(torch, plain, values)


@lru_cache(maxsize=1)
def _triton_code() -> ModuleType | None:
    try:
        require_module("triton", "gpu")
    except MissingDependency:
        return None
    from quietbit.kernel import triton_transform

    return triton_transform


def _hadamard_torch(torch: ModuleType, x: Any, values: Any) -> Any:
    """Stage by stage on any device, with half the tensor's length to spare.

    Larger steps as matrix products would make fewer passes, in another order of additions and, where a caller allows
    it, in TensorFloat-32; the Triton kernel makes few passes without either.
    """
    half, size = 1, x.numel()
    while half < size:
        pairs = x.view(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2
    scale, exact = _scale(size)
    divisor = torch.tensor(scale, dtype=x.dtype, device=x.device)
    if exact:
        x.mul_(divisor)
    else:
        x.div_(divisor)
    return values


def _sign_words(size: int, seed: int) -> NDArray[np.uint32]:
    """32 signs to a word: a set bit is a minus, least significant first."""
    number = check_int(seed, "seed", 0)
    key = np.random.SeedSequence(number, spawn_key=(size,)).generate_state(2, np.uint64)
    words = np.random.Philox(key=key).random_raw(-(-size // 64))
    return words.astype("<u8").view("<u4")


def _sign_tensor(like: Any, seed: int) -> Any:
    """Signs as a tensor of another's length, type and device."""
    torch, size = require_module("torch", "torch"), like.numel()
    words = torch.from_numpy(_sign_words(size, seed).view("<i4").copy()).to(like.device)
    places = torch.arange(32, dtype=torch.int32, device=like.device)
    minus = ((words[:, None] >> places) & 1).reshape(-1)[:size]
    return (1 - 2 * minus).to(like.dtype)


def _signed(x: NDArray[Any], factor: float, words: NDArray[np.uint32], out: NDArray[Any]) -> bool:
    """Write ``factor * x`` with signs; false if an entry is not finite or above LARGEST."""
    code = _machine_code()
    if code is not None:
        return bool(code.signed_copy(x, factor, words, out))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: x.size]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x * np.float64(factor)
        np.copyto(out, np.where(bits, -scaled, scaled), casting="same_kind")
    return bool(np.all(np.abs(scaled) <= LARGEST))
