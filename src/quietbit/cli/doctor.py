"""``quietbit doctor``: what is installed, what the machine supports, and a self-test."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import quietbit
from quietbit._files import cache_folder
from quietbit.cli.console import JsonOption, Row, progress_bar, record, show_json
from quietbit.errors import how_to_install

__all__ = ["doctor"]

# Packages, with the extra that installs each; empty for those that quietbit needs.
PACKAGES = {
    "numpy": "",
    "scipy": "",
    "cryptography": "",
    "torch": "torch",
    "triton": "gpu",
    "dp-accounting": "accounting",
    "quietbit-lab": "lab",
    "flwr": "flower",
    "nvflare": "nvflare",
}
FOLDERS = {"designs": "solved designs", "features": "features"}


def doctor(json: JsonOption = False) -> int:
    """Print versions, kernels and GPU support, then test kernels, a certificate and a payload.

    The exit code is 1 if a test fails.

    Example: quietbit doctor
    """
    # Imported here, so that --help need not wait for numpy.
    from quietbit.doctor import self_test

    versions = _versions()
    missing = {
        name: how_to_install(PACKAGES[name]) for name, number in versions.items() if number is None
    }
    with progress_bar("Inspecting the machine", quiet=json):
        machine = _machine()
    if not json:
        rows = [
            Row(name, name, number, number or f"not installed: {missing[name]}")
            for name, number in versions.items()
        ]
        record("Installed", rows)
        record("This machine", _machine_rows(**machine))
    with progress_bar("Self-test", quiet=json, lines=True) as report:
        outcomes = self_test(report)
    passed = all(outcome.passed for outcome in outcomes)
    if json:
        facts = {"versions": versions, "missing": missing, **machine}
        facts["checks"] = [outcome._asdict() for outcome in outcomes]
        facts["passed"] = passed
        show_json(facts)
    else:
        rows = []
        for outcome in outcomes:
            word = "PASS" if outcome.passed else "FAIL"
            label = f"{word}  {outcome.name}"
            rows.append(Row(outcome.name, label, outcome.passed, outcome.detail))
        seconds = sum(outcome.seconds for outcome in outcomes)
        record(f"Self-test, {seconds:.1f} s", rows)
    return 0 if passed else 1


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "quietbit": quietbit.__version__,
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _machine() -> dict[str, Any]:
    from quietbit.kernel import support
    from quietbit.kernel.select import default_kernel

    kernels = support.kernel_support()
    return {
        "folders": {name: str(cache_folder(name)) for name in FOLDERS},
        "kernels": {
            name: {"available": not why, "reason": why or None} for name, why in kernels.items()
        },
        "default_kernel": default_kernel().name,
        "gpu": {"name": None, "gigabytes": 0.0, "reason": None, **support.gpu_support()},
    }


def _machine_rows(folders: Any, kernels: Any, default_kernel: str, gpu: Any) -> list[Row]:
    rows = []
    for name, kernel in kernels.items():
        usual = "available, the default" if name == default_kernel else "available"
        rows.append(Row(name, f"kernel {name}", kernel["available"], kernel["reason"] or usual))
    return [
        *rows,
        Row(
            "gpu", "GPU", gpu["name"], gpu["reason"] or f"{gpu['name']}, {gpu['gigabytes']:.0f} GB"
        ),
        *(Row(key, FOLDERS[key], folder) for key, folder in folders.items()),
    ]
