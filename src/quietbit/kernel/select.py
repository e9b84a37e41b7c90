"""Choosing a kernel by name: explicit, and without a fallback.

Idea     a missing package is a sentence, never another kernel in its place. `default_kernel` is the one rule
         the library uses when a caller names none: ``cpu`` where numba is installed, else ``reference``;
         both give the same codes, so the rule changes speed and nothing else. `Kernel.name` says which it
         was.
"""

from __future__ import annotations

from importlib.util import find_spec

from quietbit._validate import require
from quietbit.kernel.base import Kernel
from quietbit.kernel.reference import ReferenceKernel

__all__ = ["GPU_KERNELS", "KERNELS", "default_kernel", "select"]

KERNELS = ("cpu", "reference", "torch")
GPU_KERNELS = ("triton",)  # these refuse a machine without a GPU


def select(name: str, *, threads: int = 1) -> Kernel:
    """The kernel of that name: ``cpu`` (needs numba), ``torch`` (needs torch), ``triton`` or ``reference``.

    ``triton`` needs torch, triton and an NVIDIA GPU.

    ``threads`` is how many threads the cpu kernel may use; the others take it as 1 only.

    >>> select("reference").name
    'reference'
    """
    require(name in KERNELS + GPU_KERNELS, "kernel", name, "one of " + ", ".join(KERNELS + GPU_KERNELS))
    if name == "cpu":
        from quietbit.kernel.cpu import CpuKernel

        return CpuKernel(threads)
    require(threads == 1, f"threads of the {name} kernel", threads, "1")
    if name == "torch":
        from quietbit.kernel.torch import TorchKernel

        return TorchKernel()
    if name == "triton":
        from quietbit.kernel.triton import TritonKernel

        return TritonKernel()
    return ReferenceKernel()


def default_kernel(*, threads: int = 1) -> Kernel:
    """``cpu`` where numba is installed, else ``reference``, which ignores ``threads``."""
    if find_spec("numba") is not None:
        return select("cpu", threads=threads)
    return ReferenceKernel()
