"""Choose a kernel by name, without a fallback, and report what this machine supports.

Idea     a missing package is an error; no other kernel takes its place. Where a caller names no
         kernel, `default_kernel` chooses one; all give the same codes, so it affects only speed. A
         kernel is available if `select` returns it; otherwise its refusal is the reason. The speed
         of AES is measured, because the random words of production come from it.
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
from quietbit.kernel.c import library
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
    """Return the kernel of that name: ``cpu``, ``triton`` or ``reference``.

    Args:
        name: ``cpu`` is in C, ``reference`` in numpy; ``triton`` needs torch, triton and an NVIDIA
            GPU.
        threads: of the cpu kernel; the others accept only 1.
    """
    names = KERNELS + GPU_KERNELS
    require(name in names, "kernel", name, "one of " + ", ".join(names))
    if name == "cpu":
        library()
        from quietbit.kernel.cpu import CpuKernel

        return CpuKernel(threads)
    require(threads == 1, f"threads of the {name} kernel", threads, "1")
    if name == "triton":
        triton = require_module("triton", "gpu")
        torch = require_module("torch", "torch")
        if not triton.knobs.runtime.interpret and not torch.cuda.is_available():
            raise MissingDependency(
                "The triton kernel needs an NVIDIA GPU, and torch sees none here."
            )
        from quietbit.kernel.triton.kernel import TritonKernel

        return TritonKernel()
    return ReferenceKernel()


def default_kernel(*, threads: int = 1) -> Kernel:
    """Return ``cpu`` where the C kernel is built or can be built, else ``reference``.

    The reference is 100 to 300 times slower and ignores ``threads``; a `SlowKernelWarning` says so
    once, with the reason.
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
    slower = "Until then numpy takes its place, 100 to 300 times slower, with the same results."
    message = f"{reason} {slower}"
    warnings.warn(message, SlowKernelWarning, stacklevel=3)


def kernel_support() -> dict[str, str]:
    """Return for every kernel why it does not run here; an empty word where it does."""
    reasons = dict.fromkeys(KERNELS + GPU_KERNELS, "")
    for name in reasons:
        try:
            select(name)
        # A package that is installed but broken raises errors of its own.
        except (QuietbitError, ImportError, OSError, RuntimeError) as error:
            reasons[name] = " ".join(str(error).split())
    return reasons


def aes_instructions(facts: Path = CPU_FACTS) -> bool | None:
    """Return whether the processor reports AES instructions; ``None`` if that is unknown."""
    try:
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = [line for line in lines if line.lower().startswith(("flags", "features"))]
    if not flags:
        return None
    return all("aes" in line.partition(":")[2].split() for line in flags)


def aes_gigabytes_per_second(seconds: float = 0.2) -> float | None:
    """Measure `secure_rng` (AES-128, counter mode) on a thread; ``None`` without cryptography."""
    try:
        read = secure_rng().draw(2**60).reader(0)
    except QuietbitError:
        return None
    words = np.empty(1 << 19, np.uint16)
    made = 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        read(words)
        made += words.nbytes
    return made / passed / 1e9


def gpu_support() -> dict[str, Any]:
    """Return name and gigabytes of the first CUDA device, or the reason why torch sees none."""
    if find_spec("torch") is None:
        return {"reason": f"torch is not installed: {how_to_install('gpu')}."}
    torch: Any = require_module("torch", "gpu")
    if not torch.cuda.is_available():
        cuda = torch.version.cuda
        built = "for CPUs alone" if cuda is None else f"for CUDA {cuda}"
        machine = f"this {platform.machine()} machine"
        return {"reason": f"torch {torch.__version__} ({built}) sees no GPU on {machine}."}
    facts = torch.cuda.get_device_properties(0)
    return {"name": str(facts.name), "gigabytes": facts.total_memory / 1e9}
