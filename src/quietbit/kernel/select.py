"""Choose a kernel by name, without a fallback, and report what this machine supports.

Idea     a missing package is an error, never another kernel in its place. `default_kernel` is the
         one rule where a caller names no kernel; all give the same codes, so it affects only speed.
         A kernel is available if `select` returns it; otherwise its refusal is the reason. Fast AES
         is looked up, and measured in any case, because production words come from it.
"""

from __future__ import annotations

import platform
import time
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from quietbit.errors import (
    MissingDependency,
    QuietbitError,
    how_to_install,
    require,
    require_module,
)
from quietbit.kernel.base import Kernel
from quietbit.kernel.native import library
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng

__all__ = [
    "GPU_KERNELS",
    "KERNELS",
    "SlowKernelWarning",
    "aes_gigabytes_per_second",
    "aes_instructions",
    "default_kernel",
    "gpu_support",
    "kernel_support",
    "select",
]

KERNELS = ("cpu", "reference")
GPU_KERNELS = ("triton",)  # these refuse a machine without a GPU
CPU_FACTS = Path("/proc/cpuinfo")


def select(name: str, *, threads: int = 1) -> Kernel:
    """Return the named kernel: ``cpu`` (in C), ``triton`` (torch, triton and an NVIDIA GPU) or ``reference``.

    ``threads`` is the number of threads of the cpu kernel; the others accept only 1.
    """
    require(
        name in KERNELS + GPU_KERNELS, "kernel", name, "one of " + ", ".join(KERNELS + GPU_KERNELS)
    )
    if name == "cpu":
        library()
        from quietbit.kernel.cpu import CpuKernel

        return CpuKernel(threads)
    require(threads == 1, f"threads of the {name} kernel", threads, "1")
    if name == "triton":
        triton, torch = require_module("triton", "gpu"), require_module("torch", "torch")
        if not triton.knobs.runtime.interpret and not torch.cuda.is_available():
            raise MissingDependency(
                "The triton kernel needs an NVIDIA GPU, and torch sees none here."
            )
        from quietbit.kernel.triton import TritonKernel

        return TritonKernel()
    return ReferenceKernel()


def default_kernel(*, threads: int = 1) -> Kernel:
    """Return ``cpu`` where the C kernel is built or can be, else ``reference``, which ignores ``threads``.

    The second is 100 to 300 times slower, which a `SlowKernelWarning` says once, with the reason.
    """
    try:
        return select("cpu", threads=threads)
    except MissingDependency as error:
        _warn_slow(str(error))
    return ReferenceKernel()


class SlowKernelWarning(UserWarning):
    """The numpy reference kernel runs in place of the C kernel."""


@lru_cache(maxsize=1)
def _warn_slow(reason: str) -> None:
    """Say why releases will be slow, once per process."""
    message = f"{reason} Until then numpy takes its place, 100 to 300 times slower, with the same results."
    warnings.warn(message, SlowKernelWarning, stacklevel=3)


def kernel_support() -> dict[str, str]:
    """Return every kernel of the library with the reason why it does not run here, empty where it does."""
    found = dict.fromkeys(KERNELS + GPU_KERNELS, "")
    for name in found:
        try:
            select(name)
        except (
            QuietbitError,
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # a package broken rather than absent
            found[name] = " ".join(str(error).split())
    return found


def aes_instructions(facts: Path = CPU_FACTS) -> bool | None:
    """Return whether the processor reports AES instructions; ``None`` where the system does not tell."""
    try:
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = [
        line.partition(":")[2].split()
        for line in lines
        if line.lower().startswith(("flags", "features"))
    ]
    return all("aes" in words for words in flags) if flags else None


def aes_gigabytes_per_second(seconds: float = 0.2) -> float | None:
    """Measure words of `secure_rng`, AES-128 in counter mode, on one thread; ``None`` without cryptography."""
    try:
        read = secure_rng().draw(2**60).reader(0)
    except QuietbitError:
        return None
    words, done, start = np.empty(1 << 19, np.uint16), 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        read(words)
        done += words.nbytes
    return done / passed / 1e9


def gpu_support() -> dict[str, Any]:
    """Return name and gigabytes of the first CUDA device that torch sees, or the reason why there is none."""
    if find_spec("torch") is None:
        return {"reason": f"torch is not installed: {how_to_install('gpu')}."}
    torch: Any = require_module("torch", "gpu")
    if not torch.cuda.is_available():
        built = "for CPUs alone" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
        return {
            "reason": f"torch {torch.__version__} ({built}) sees no GPU on this {platform.machine()} machine."
        }
    facts = torch.cuda.get_device_properties(0)
    return {"name": str(facts.name), "gigabytes": facts.total_memory / 1e9}
