"""What this machine supports: which kernels run, its instructions for AES, and its GPU.

Idea     a kernel runs if `select` returns it; otherwise its refusal is the reason. The speed of AES
         is measured, because the random words of production come from it.
"""

from __future__ import annotations

import platform
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from quietbit.errors import QuietbitError, how_to_install, require_module
from quietbit.kernel.rng import secure_rng
from quietbit.kernel.select import GPU_KERNELS, KERNELS, select

__all__ = ["aes_gigabytes_per_second", "aes_instructions", "gpu_support", "kernel_support"]

CPU_FACTS = Path("/proc/cpuinfo")


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
