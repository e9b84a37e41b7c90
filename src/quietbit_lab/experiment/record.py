"""A run as JSON: enough to repeat it, and everything it claims.

Idea     settings, task, seed, versions and commit say how; points, guarantee and bytes say what came of it.
         With seeded words the same record gives the same accuracies on the same kind of machine.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quietbit._validate import QuietbitError
from quietbit.privacy.guarantee import Guarantee
from quietbit.simulate.loop import Point, Run
from quietbit_lab.experiment.files import write_json

__all__ = ["EVERY_CLIENT", "FORMAT", "commit_of", "read_record", "run_record", "save_record", "versions"]

FORMAT, VERSION = "quietbit run", 1
EVERY_CLIENT = "every client"
PACKAGES = ("quietbit", "numpy", "scipy", "numba", "torch", "kymatio", "scikit-learn", "cryptography")


def run_record(
    run: Run,
    task: dict[str, Any],
    *,
    device: str = "cpu",
    draws: str = EVERY_CLIENT,
    batch: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a run of this task, as plain values; an infinite epsilon becomes null.

    ``draws`` says what was drawn at random: every client's codes, or the cohort's sum from its own law. A run that
    was trained together with others names the ``batch``, whose seconds are those of all its runs.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "status": run.status,
        "reason": run.reason,
        "task": task,
        "settings": run.settings.to_json(),
        "rounds": run.rounds,
        "mechanism": describe(run.mechanism),
        "dimension": int(run.parameters.size),
        "points": [_point(point) for point in run.points],
        "guarantee": _guarantee(run.guarantee),
        "bytes_per_client": run.bytes_per_client,
        "uplink_bytes": run.rounds * run.settings.cohort * run.bytes_per_client,
        "seconds": run.seconds,
        "device": device,
        "draws": draws,
        "batch": dict(batch) if batch is not None else None,
        "seeds": {"run": run.settings.seed, "words": run.settings.seed if run.settings.words == "seeded" else None},
        "versions": versions(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "commit": commit_of(Path(__file__).parent),
    }


def save_record(path: Path, record: dict[str, Any]) -> Path:
    """Write a record; the file appears whole or not at all."""
    return write_json(path, record)


def read_record(path: Path) -> dict[str, Any]:
    """A record from a file; anything else is refused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise QuietbitError(f"{path} is not a run record: it is not complete JSON.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise QuietbitError(f"{path} is not a run record: it does not say format {FORMAT!r}.")
    if content.get("version") != VERSION:
        raise QuietbitError(f"{path} has version {content.get('version')!r}, and this library reads {VERSION}.")
    return content


def describe(mechanism: Any) -> dict[str, Any] | None:
    """The public numbers of a mechanism."""
    if mechanism is None:
        return None
    found: dict[str, Any] = {"kind": type(mechanism).__name__, "bits": mechanism.bits}
    inner = getattr(mechanism, "inner", None)
    if inner is not None:
        found["inner"] = describe(inner)
    for name in ("noise_multiplier", "scale_multiplier", "beta", "clamp", "decoder"):
        if hasattr(mechanism, name):
            found[name] = getattr(mechanism, name)
    design = getattr(mechanism, "design", None)
    if design is not None:
        spec = design.spec
        found["design"] = {"levels": spec.input_levels, "epsilon": spec.epsilon, "identity": design.identity()}
    return found


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def commit_of(folder: Path) -> str | None:
    """The commit of a checkout, with a + where files differ from it; nothing outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        ask = [git, "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def _point(point: Point) -> dict[str, Any]:
    return {
        "round": point.round,
        "accuracy": point.score.accuracy,
        "loss": point.score.loss if math.isfinite(point.score.loss) else None,
        "epsilon_upper": _finite(point.guarantee.epsilon_upper) if point.guarantee is not None else None,
        "uplink_bytes": point.uplink_bytes,
        "seconds": point.seconds,
    }


def _guarantee(guarantee: Guarantee | None) -> dict[str, Any] | None:
    if guarantee is None:
        return None
    return {
        "epsilon_upper": _finite(guarantee.epsilon_upper),
        "delta": guarantee.delta,
        "unit": guarantee.unit.value,
        "adjacency": guarantee.adjacency.value,
        "trust": guarantee.trust.value,
        "sentence": guarantee.sentence(),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
