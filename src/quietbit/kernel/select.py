"""Choose a kernel by name, without a fallback.

Idea     a missing package is an error; no other kernel takes its place. Where a caller names no
         kernel, `default_kernel` chooses one; all give the same codes, so it affects only speed. A
         kernel is available if `select` returns it; otherwise its refusal is the reason.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

from quietbit.errors import (
    MissingDependency,
    require,
    require_module,
)
from quietbit.kernel.base import Kernel
from quietbit.kernel.c import library
from quietbit.kernel.reference import ReferenceKernel

__all__ = [
    "GPU_KERNELS",
    "KERNELS",
    "SlowKernelWarning",
    "default_kernel",
    "select",
]

KERNELS = ("cpu", "reference")
GPU_KERNELS = ("triton",)  # these refuse a machine without a GPU


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
