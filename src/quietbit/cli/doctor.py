"""``quietbit doctor``: what is installed, what this machine offers, and whether sampler and account are right."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import typer

import quietbit
from quietbit._files import cache_folder
from quietbit.cli.console import JsonOption, Row, progress_bar, record, show_json
from quietbit.errors import how_to_install

if TYPE_CHECKING:
    from quietbit.kernel.select import KernelSupport

__all__ = ["doctor"]

# Distribution and the extra that brings it; without one it comes with quietbit itself.
PACKAGES = (
    ("numpy", ""), ("scipy", ""), ("cryptography", ""), ("numba", "cpu"), ("torch", "torch"), ("triton", "gpu"),
    ("matplotlib", "plot"), ("dp-accounting", "accounting"), ("scikit-learn", "lab"), ("kymatio", "lab"),
    ("flwr", "flower"), ("nvflare", "nvflare"),
)  # fmt: skip
CHECK = ("name", "passed", "detail", "seconds")
FOLDERS = {"designs": "solved designs", "features": "features"}


def doctor(json: JsonOption = False) -> None:
    """Print versions, kernels, AES and GPU support, then test sampler and account; exit code 1 if a test fails.

    Example: quietbit doctor
    """
    # Imported here, so that --help need not wait for numpy.
    from quietbit.auditor.doctor import self_test
    from quietbit.kernel.select import (
        aes_gigabytes_per_second,
        aes_instructions,
        default_kernel,
        gpu_support,
        kernel_support,
    )

    versions = _versions()
    missing = {name: how_to_install(dict(PACKAGES)[name]) for name, found in versions.items() if found is None}
    with progress_bar("Looking around", quiet=json) as report:
        report(0.0, "kernels")
        kernels, default = kernel_support(), default_kernel().name
        report(0.5, "GPU")
        gpu = gpu_support()
        report(0.8, "AES")
        instructions, speed = aes_instructions(), aes_gigabytes_per_second()
    aes = {"instructions": instructions, "gigabytes_per_second": speed}
    folders = {name: str(cache_folder(name)) for name in FOLDERS}
    if not json:
        told = [Row(name, name, found, found or f"not installed: {missing[name]}") for name, found in versions.items()]
        record("Installed", told, False)
        told = [
            *(Row(one.name, f"kernel {one.name}", one.available, _kernel(one, default)) for one in kernels),
            Row("aes", "AES", aes, _aes(instructions, speed)),
            Row("gpu", "GPU", gpu.name, gpu.reason or f"{gpu.name}, {gpu.gigabytes:.0f} GB"),
            *(Row(key, FOLDERS[key], folder) for key, folder in folders.items()),
        ]
        record("This machine", told, False)
    with progress_bar("Self-test", quiet=json, lines=True) as report:
        outcomes = self_test(report)
    passed = all(one.passed for one in outcomes)
    if json:
        show_json(
            {
                "versions": versions,
                "missing": missing,
                "kernels": {one.name: {"available": one.available, "reason": one.reason or None} for one in kernels},
                "default_kernel": default,
                "aes": aes,
                "gpu": {"name": gpu.name or None, "gigabytes": gpu.gigabytes, "reason": gpu.reason or None},
                "folders": folders,
                "checks": [{name: getattr(one, name) for name in CHECK} for one in outcomes],
                "passed": passed,
            }
        )
    else:
        words = {True: "PASS", False: "FAIL"}
        told = [Row(one.name, f"{words[one.passed]}  {one.name}", one.passed, one.detail) for one in outcomes]
        record(f"Self-test, {sum(one.seconds for one in outcomes):.1f} s", told, False)
    if not passed:
        raise typer.Exit(1)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"quietbit": quietbit.__version__, "python": platform.python_version()}
    for name, _ in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _kernel(one: KernelSupport, default: str) -> str:
    return "available" + (", the default" if one.name == default else "") if one.available else one.reason


def _aes(instructions: bool | None, speed: float | None) -> str:
    told = {True: "the processor has AES instructions", False: "the processor has no AES instructions"}
    found = "the system does not tell" if instructions is None else told[instructions]
    return (
        f"{found}; {'cryptography is not installed' if speed is None else f'{speed:.1f} GB/s measured on one thread'}"
    )
