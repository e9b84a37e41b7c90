"""Randomise and sum over a cohort of rank-one updates without ever writing one of them.

Idea     a client with one sample and a linear softmax model has the update left[k] * right[f]. A simulation needs no
         single client's bits, only how many of them are one; so a kernel makes t = left * right in a register,
         draws the bit, and keeps the count. Bits are those of the per-client path: independent, one per client and
         coordinate, P(code 1) right to 2^-52 (see `law.py`). Many configurations (models, clips, noise scales,
         seeds) over the same cohort go in one call.
Symbols  G configurations, m clients, K classes, F features (a column of ones for the bias among them).

Simulation only: the sums of bits are what an honest cohort would have made; no client could send them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from quietbit.errors import check_real, require, require_module
from quietbit_lab.cohort.law import BitLaw, exact_bits, tail_table
from quietbit_lab.cohort.plan import bit_plan
from quietbit_lab.cohort.words import MAX_STREAM, check_generator, key_numbers, words_of

__all__ = [
    "MAX_REACH",
    "BitLaw",
    "check_factors",
    "count_ones",
    "device_key",
    "each_class",
    "reference_counts",
    "stream_numbers",
]

MAX_REACH = 1024.0
WORKING_SET = 1 << 18  # coordinates the reference holds at once
CPU_TERMS = 6  # a polynomial with more costs a CPU more than an exponential
LENGTHS = (3, 6, 14)
FEW = 1 << 18  # bits below which starting threads does not pay


def count_ones(
    law: BitLaw,
    left: Any,
    right: Any,
    *,
    words_key: Any,
    reach: float,
    generator: str = "philox",
    streams: Any = None,
) -> Any:
    """How many clients' bits are one, for each configuration, class and feature: an int32 tensor (G, K, F).

    Args:
        law: which function of t = left[g, i, k] * right[i, f] P(code 1) is.
        left: float32 tensor (G, m, K), the configuration's scale multiplied in.
        right: float32 tensor (m, F) on the same device, shared by all configurations.
        words_key: 32 bytes, never used twice for the same stream; or an int32 tensor of 8 on the device, so that a
            captured CUDA graph can be replayed with fresh keys.
        reach: the caller's promise |t| <= reach, at most 1024; t is clamped to it all the same. A NaN counts as -reach.
        generator: ``philox`` (fast, passes statistical tests, no cipher: for simulations) or ``chacha12`` (a cipher).
        streams: int32 tensor (G,) of numbers from 0 to 2^24 - 1, the configurations' addresses of words; by default
            0 .. G-1. Rows with equal numbers get equal words, which is right only for a paired comparison.

    Values on a GPU are not looked at by the host: nothing waits.
    """
    torch = require_module("torch", "torch")
    check_generator(generator)
    require(isinstance(law, BitLaw), "law", law, "a BitLaw")
    check_factors(torch, left, right)
    bound = check_real(reach, "reach", at_most=MAX_REACH)
    key = device_key(torch, words_key, left.device)
    numbers = stream_numbers(torch, streams, left)
    if left.device.type == "cuda":
        from quietbit_lab.cohort.triton_host import count_on_device

        return count_on_device(law, left, right, key, bound, generator, numbers)
    words = tuple(int(word) & 0xFFFFFFFF for word in key.tolist())
    arrays = left.detach().contiguous().numpy(), right.detach().contiguous().numpy()
    if find_spec("numba") is None:
        return torch.from_numpy(reference_counts(law, *arrays, words, bound, generator, numbers.tolist()))
    return torch.from_numpy(
        _compiled_counts(law, *arrays, words, bound, generator, numbers.tolist(), torch.get_num_threads())
    )


def reference_counts(
    law: BitLaw, left: Any, right: Any, key: tuple[int, ...], reach: float, generator: str, streams: list[int]
) -> Any:
    """The same counts, slowly and obviously: numpy, every bit by the exact law."""
    groups, clients, classes = left.shape
    counts = np.zeros((groups, classes, right.shape[1]), dtype=np.int32)
    step = max(1, WORKING_SET // max(1, classes * right.shape[1]))
    for g in range(groups):
        for start in range(0, clients, step):
            chosen = np.arange(start, min(clients, start + step))
            t = left[g, chosen].astype(np.float64)[:, :, None] * right[chosen].astype(np.float64)[:, None, :]
            primary, ties = words_of(key, generator, streams[g], chosen, classes, right.shape[1])
            counts[g] += exact_bits(law, t, reach, primary, ties).sum(axis=0, dtype=np.int32)
    return counts


def _compiled_counts(
    law: BitLaw,
    left: Any,
    right: Any,
    key: tuple[int, ...],
    reach: float,
    generator: str,
    streams: list[int],
    threads: int,
) -> Any:
    """The same counts by numba; a thread owns one class of one configuration at a time."""
    from quietbit_lab.cohort.compiled import count_class

    groups, _, classes = left.shape
    counts = np.zeros((groups, classes, right.shape[1]), dtype=np.int32)
    plan = bit_plan(law, reach, CPU_TERMS)
    form = ("odd", "logistic", "laplace").index(plan.form)
    # The highest power first, as a tuple of one of three lengths: the compiler unrolls each once.
    length = next(size for size in LENGTHS if size >= len(plan.coefficients))
    numbers = tuple(np.float32(value) for value in (*plan.coefficients, *(0.0,) * length)[length - 1 :: -1])
    compiled_plan = (form, np.float32(plan.rate), np.float32(plan.turns), numbers, np.int32(plan.width))
    exact = (float(reach), tail_table(law))
    words, chacha = np.array(key, dtype=np.uint32), generator == "chacha12"

    def work(pair: tuple[int, int]) -> None:
        g, k = pair
        column = np.ascontiguousarray(left[g, :, k])
        count_class(column, right, words, chacha, streams[g], k, compiled_plan, exact, counts[g, k])

    each_class(work, groups, classes, threads if counts.size * right.shape[0] >= FEW else 1)
    return counts


def each_class(work: Callable[[tuple[int, int]], None], groups: int, classes: int, threads: int) -> None:
    """Call ``work`` for every configuration and class; with one thread nothing is started."""
    pairs = [(g, k) for g in range(groups) for k in range(classes)]
    if threads == 1:
        for pair in pairs:
            work(pair)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, pairs))


def check_factors(torch: Any, left: Any, right: Any) -> None:
    """Refuse wrong types and shapes."""
    for name, value, axes in (("left", left, 3), ("right", right, 2)):
        fine = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.ndim == axes
        require(fine, name, str(getattr(value, "dtype", type(value))), f"a float32 tensor with {axes} axes")
    require(left.shape[1] == right.shape[0], "clients of right", right.shape[0], f"the {left.shape[1]} of left")
    require(left.device == right.device, "device of right", str(right.device), f"{left.device}, left's")
    fits = left.shape[1] < 2**31 and left.shape[2] < 2**24 and left.shape[2] * right.shape[1] < 2**31
    require(fits, "shape of left", tuple(left.shape), "below 2^31 clients and coordinates")


def device_key(torch: Any, words_key: Any, device: Any) -> Any:
    """Eight int32 on the device."""
    if isinstance(words_key, torch.Tensor):
        fine = words_key.dtype == torch.int32 and tuple(words_key.shape) == (8,) and words_key.device == device
        require(fine, "words_key", tuple(words_key.shape), f"32 bytes, or an int32 tensor of 8 on {device}")
        return words_key.contiguous()
    key_numbers(words_key)
    on_device = device.type == "cuda"
    words = np.frombuffer(bytes(words_key), dtype="<i4").tolist()
    key = torch.tensor(words, dtype=torch.int32, pin_memory=on_device)
    # From pinned memory, because any other copy to a GPU waits for all that it has been given to do.
    return key.to(device, non_blocking=True)


def stream_numbers(torch: Any, streams: Any, left: Any) -> Any:
    """The configurations' addresses of words, an int32 tensor."""
    groups = left.shape[0]
    require(groups <= MAX_STREAM, "configurations", groups, f"at most {MAX_STREAM}")
    if streams is None:
        return _first_streams(groups, str(left.device))
    fine = isinstance(streams, torch.Tensor) and streams.dtype == torch.int32 and tuple(streams.shape) == (groups,)
    require(fine and streams.device == left.device, "streams", type(streams), f"an int32 tensor of {groups}")
    if left.device.type == "cpu" and groups:
        inside = int(streams.min()) >= 0 and int(streams.max()) < MAX_STREAM
        require(inside, "streams", int(streams.max()), f"from 0 to {MAX_STREAM - 1}")
    return streams.contiguous()


@lru_cache(maxsize=64)
def _first_streams(groups: int, device: str) -> Any:
    """0, 1, ...: made once, so that a round launches one kernel less."""
    torch = require_module("torch", "torch")
    return torch.arange(groups, dtype=torch.int32, device=device)
