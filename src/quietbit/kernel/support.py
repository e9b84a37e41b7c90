"""What this machine supports: which kernels run, and its GPU.

Idea     a kernel runs if `select` returns it; otherwise its refusal is the reason.
"""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import Any

from quietbit.errors import QuietbitError, how_to_install, require_module
from quietbit.kernel.select import GPU_KERNELS, KERNELS, select

__all__ = ["gpu_support", "kernel_support"]


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
