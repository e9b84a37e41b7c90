"""``quietbit doctor``: what is installed, what this machine offers, and whether sampler and account are right."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import typer

import quietbit
from quietbit._files import cache_folder
from quietbit.cli.console import JsonOption, Row, progress_bar, record, show_json
from quietbit.errors import how_to_install

if TYPE_CHECKING:
    from quietbit.auditor.doctor import Outcome
    from quietbit.kernel.select import Gpu, KernelSupport

__all__ = ["doctor"]

# Distribution and the extra that brings it; without one it comes with quietbit itself.
PACKAGES = (
    ("numpy", ""),
    ("scipy", ""),
    ("cryptography", ""),
    ("numba", "cpu"),
    ("torch", "torch"),
    ("triton", "gpu"),
    ("matplotlib", "plot"),
    ("dp-accounting", "accounting"),
    ("scikit-learn", "lab"),
    ("kymatio", "lab"),
    ("flwr", "flower"),
    ("nvflare", "nvflare"),
)
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
    with progress_bar("Looking around", quiet=json) as report:
        report(0.0, "kernels")
        kernels, default = kernel_support(), default_kernel().name
        report(0.5, "GPU")
        gpu = gpu_support()
        report(0.8, "AES")
        aes = {"instructions": aes_instructions(), "gigabytes_per_second": aes_gigabytes_per_second()}
    if not json:
        record("Installed", _version_rows(versions), False)
        record(
            "This machine", [*_kernel_rows(kernels, default), *_aes_rows(aes), _gpu_row(gpu), *_folder_rows()], False
        )
    with progress_bar("Self-test", quiet=json, lines=True) as report:
        outcomes = self_test(report)
    if json:
        show_json(_facts(versions, kernels, default, aes, gpu, outcomes))
    else:
        record(f"Self-test, {sum(one.seconds for one in outcomes):.1f} s", _outcome_rows(outcomes), False)
    if not all(one.passed for one in outcomes):
        raise typer.Exit(1)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"quietbit": quietbit.__version__, "python": platform.python_version()}
    for name, _ in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _advice(name: str) -> str:
    return how_to_install(dict(PACKAGES)[name])


def _version_rows(versions: dict[str, str | None]) -> list[Row]:
    return [Row(name, name, found, found or f"not installed: {_advice(name)}") for name, found in versions.items()]


def _kernel_rows(kernels: tuple[KernelSupport, ...], default: str) -> list[Row]:
    rows = []
    for one in kernels:
        shown = "available" + (", the default" if one.name == default else "") if one.available else one.reason
        rows.append(Row(one.name, f"kernel {one.name}", one.available, shown))
    return rows


def _aes_rows(aes: dict[str, Any]) -> list[Row]:
    told = {True: "the processor has AES instructions", False: "the processor has no AES instructions"}
    speed = aes["gigabytes_per_second"]
    measured = f"{speed:.1f} GB/s measured on one thread" if speed is not None else "cryptography is not installed"
    return [Row("aes", "AES", aes, f"{told.get(aes['instructions'], 'the system does not tell')}; {measured}")]


def _gpu_row(gpu: Gpu) -> Row:
    return Row("gpu", "GPU", gpu.name, gpu.reason or f"{gpu.name}, {gpu.gigabytes:.0f} GB")


def _outcome_rows(outcomes: list[Outcome]) -> list[Row]:
    return [
        Row(one.name, f"{'PASS' if one.passed else 'FAIL'}  {one.name}", one.passed, one.detail) for one in outcomes
    ]


def _folders() -> dict[str, str]:
    return {name: str(cache_folder(name)) for name in FOLDERS}


def _folder_rows() -> list[Row]:
    return [Row(key, FOLDERS[key], folder) for key, folder in _folders().items()]


def _facts(
    versions: dict[str, str | None],
    kernels: tuple[KernelSupport, ...],
    default: str,
    aes: dict[str, Any],
    gpu: Gpu,
    outcomes: list[Outcome],
) -> dict[str, Any]:
    return {
        "versions": versions,
        "missing": {name: _advice(name) for name, found in versions.items() if found is None},
        "kernels": {one.name: {"available": one.available, "reason": one.reason or None} for one in kernels},
        "default_kernel": default,
        "aes": aes,
        "gpu": {"name": gpu.name or None, "gigabytes": gpu.gigabytes, "reason": gpu.reason or None},
        "folders": _folders(),
        "checks": [
            {"name": one.name, "passed": one.passed, "detail": one.detail, "seconds": one.seconds} for one in outcomes
        ],
        "passed": all(one.passed for one in outcomes),
    }
