"""A run as JSON: enough to repeat it, and everything it claims.

Idea     settings (a plan and a training, as one flat table), task, seed, versions and commit say
         how; points, guarantee and bytes say what came of it. With a seeded rng the same record
         gives the same accuracies on the same kind of machine. Records of version 1 have other
         words for some settings: `modern` reads them, and digests of settings are still taken of
         those words, so that a job keeps its name.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import attrs

from quietbit.errors import QuietbitError, check_known, require
from quietbit.federation.plan import Plan
from quietbit.federation.simulate.loop import Point, Run
from quietbit.federation.simulate.problem import Training
from quietbit.mechanism.registry import describe
from quietbit_lab.schedule import ScheduledPlan

__all__ = [
    "EVERY_CLIENT",
    "FORMAT",
    "Setting",
    "commit_of",
    "modern",
    "plan_table",
    "protects",
    "read_json",
    "read_record",
    "run_record",
    "versions",
]

FORMAT = "quietbit run"
VERSION = 2
READ = (1, 2)
# What version 1 called the settings that have another name now.
RENAMED = {
    "epsilon": "design_epsilon",
    "target_epsilon": "epsilon",
    "noise": "noise_multiplier",
    "words": "rng",
    "honest": "min_honest_clients",
}
# Settings of a plan that version 1 had too; others are left out where they have their defaults.
FIRST = (
    *(
        "mechanism",
        "clip",
        "adjacency",
        "norm",
        "epsilon",
        "delta",
        "unit",
        "trust",
        "cohort",
        "participation",
    ),
    *(
        "min_honest_clients",
        "design_epsilon",
        "noise_multiplier",
        "bits",
        "levels",
        "beta",
        "clamp",
        "decoder",
    ),
    *("rng", "seed"),
)
# Settings of a plan, in a record's flat table: the key in a plan, and its default.
OF_MECHANISM = (
    "design_epsilon",
    "noise_multiplier",
    "bits",
    "levels",
    "beta",
    "clamp",
    "decoder",
    "rotate",
)
KEYS = {
    "mechanism": ("mechanism.name", attrs.NOTHING),
    "clip": ("clip", attrs.NOTHING),
    "adjacency": ("adjacency", attrs.NOTHING),
    "norm": ("mechanism.norm", "l2"),
    "epsilon": ("epsilon", None),
    "delta": ("delta", 1e-5),
    "unit": ("samples", "client"),
    "trust": ("trust", "local"),
    "releases": ("releases", None),
    "cohort": ("cohort", 1),
    "most_examples": ("weights.most_examples", None),
    "participation": ("participation", "each-once"),
    "min_honest_clients": ("secure_aggregation.honest_clients", None),
    **{name: (f"mechanism.{name}", None) for name in OF_MECHANISM},
    "rng": ("rng", "secure"),
    "seed": ("seed", 0),
    "keep": ("mechanism.coordinates", None),
    "rows": ("mechanism.rows", None),
    "downlink": ("replay", "full"),
    "clip_quantile": ("adaptive_clip.quantile", None),
    "clip_scouts": ("adaptive_clip.every", None),
}
SWITCHES = {
    "unit": "sample",
    "downlink": "replay",
}  # what a section that is there means in the flat table
OF_TRAINING = {one.name: one for one in fields(Training)}
PAPER = {"beta": 1.0, "clamp": False, "rotate": False}  # what sweeps mean unless they say otherwise
OLD_ALONE = set(RENAMED) - set(RENAMED.values())  # names that no newer record has
EVERY_CLIENT = "every client"
PACKAGES = ("quietbit", "numpy", "scipy", "torch", "kymatio", "scikit-learn", "cryptography")


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that is chosen before a run: its plan and its training."""

    plan: ScheduledPlan
    training: Training

    def __post_init__(self) -> None:
        """Refuse a training that does not go with the plan."""
        self.training.local(self.plan)

    @property
    def seed(self) -> int:
        """What fixes the starting point, and who takes part when."""
        return self.plan.seed

    def with_seed(self, seed: int) -> Setting:
        """Return the same setting under another seed."""
        return replace(self, plan=attrs.evolve(self.plan, seed=seed))

    def to_json(self) -> dict[str, Any]:
        """One flat table of plain values for a record."""
        return _table(self.plan, self.training)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Setting:
        """From a record or a sweep; an unknown name is refused."""
        for name in values:
            check_known(name, [*KEYS, *OF_TRAINING], "setting")
        for name, (_, default) in KEYS.items():
            _check_given(values, name, default is not attrs.NOTHING)
        for name, field in OF_TRAINING.items():
            _check_given(values, name, field.default is not MISSING)
        given = {**PAPER, **values, "evaluate_at": tuple(values.get("evaluate_at", ()))}
        training = {name: given[name] for name in OF_TRAINING if name in given}
        return cls(_plan(given), Training(**training))

    def first_words(self) -> dict[str, Any]:
        """Return the table under version 1's names, from which digests of jobs are taken."""
        old = {new: name for name, new in RENAMED.items()}
        return {old.get(name, name): value for name, value in self.to_json().items()}


def _check_given(values: Mapping[str, Any], name: str, has_default: bool) -> None:
    require(has_default or name in values, name, None, "given", "add it to the settings")


def _table(plan: Plan, training: Training) -> dict[str, Any]:
    """Return a plan and a training as one flat table of plain values."""
    values = {**plan_table(plan), **asdict(training)}
    values = {
        name: value.value if isinstance(value, Enum) else value for name, value in values.items()
    }
    unsaid = {
        name: PAPER.get(name, default) for name, (_, default) in KEYS.items() if name not in FIRST
    }
    return {
        name: value for name, value in values.items() if name not in unsaid or value != unsaid[name]
    }


def plan_table(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan as one flat table of plain values."""
    values: dict[str, Any] = {}
    for name, (key, default) in KEYS.items():
        value: Any = plan
        for part in key.split("."):
            if value is not None:
                value = getattr(value, part, default)  # an engine's plan has no cohort
        if name in SWITCHES:
            if value is None:
                value = default
            else:
                value = SWITCHES[name]
        values[name] = value.value if isinstance(value, Enum) else value
    return values


def _plan(values: Mapping[str, Any]) -> ScheduledPlan:
    """Return the plan of a flat table."""
    table: dict[str, Any] = {}
    for name, (key, default) in KEYS.items():
        value = values.get(name)
        if name in SWITCHES:
            known = (None, default, SWITCHES[name])
            require(value in known, name, value, f"{default} or {SWITCHES[name]}")
            if value == SWITCHES[name]:
                table[key] = True
        elif value is not None:
            table[key.replace("_", "-")] = value
    return ScheduledPlan.read(table)


def modern(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its settings under current names instead of version 1's."""
    settings = record.get("settings")
    if not isinstance(settings, Mapping) or not OLD_ALONE & set(settings):
        return dict(record)
    return {
        **record,
        "settings": {RENAMED.get(name, name): value for name, value in settings.items()},
    }


def run_record(
    run: Run,
    task: dict[str, Any],
    *,
    device: str = "cpu",
    draws: str = EVERY_CLIENT,
    batch: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of a run of this task, as plain values; an infinite epsilon becomes null.

    ``draws`` says what was drawn at random: every client's codes, or the cohort's sum from its own
    law. A run that was trained together with others names the ``batch``, whose seconds are those of
    all its runs.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "status": run.status,
        "reason": run.reason,
        "task": task,
        "settings": _table(run.plan, run.training),
        "rounds": run.rounds,
        "mechanism": describe(run.mechanism) if run.mechanism is not None else None,
        "bits": run.mechanism.layout.bits if run.mechanism is not None else None,
        "dimension": int(run.parameters.size),
        "points": [_point(point) for point in run.points],
        **({"clips": run.clips} if run.clips else {}),
        "guarantee": _guarantee(run),
        "expectation": run.expected.sentence() if run.expected is not None else None,
        "bytes_per_client": run.bytes_per_client,
        "uplink_bytes": run.uplink_bytes,
        "downlink_bytes": run.downlink_bytes,
        "seconds": run.seconds,
        "device": device,
        "draws": draws,
        "protects": protects(run, drawn_by_clients=batch is None and draws == EVERY_CLIENT),
        "batch": dict(batch) if batch is not None else None,
        "seeds": {"run": run.plan.seed, "rng": run.plan.seed if run.plan.rng == "seeded" else None},
        "versions": versions(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "commit": commit_of(Path(__file__).parent),
    }


def protects(run: Run, *, drawn_by_clients: bool) -> str:
    """Return whom the random numbers of a run protect: in most simulations nobody.

    The guarantee of a run is about the plan; it holds for what leaves clients if their releases
    were made by the library's samplers, from bits that nobody can predict.
    """
    if run.guarantee is None:
        return "nobody: the run was not private"
    if not drawn_by_clients:
        return (
            "nobody: codes or sums were drawn from their law by a cohort's kernel, "
            "not by the samplers of clients"
        )
    if run.plan.rng == "seeded":
        return "nobody: random bits come from a seed"
    return "those whom the guarantee is about"


def read_json(path: Path) -> dict[str, Any]:
    """Return the table in a JSON file; refuse anything else."""
    if path.exists() and not path.is_file():  # a FIFO or a device may never end
        raise QuietbitError(f"{path} is not a regular file.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise QuietbitError(
            f"{path} is not a run record: it is not complete JSON. Name a file that "
            "`quietbit train --out` or an engine's report wrote."
        ) from error
    if isinstance(content, dict):
        return content
    return {}


def read_record(path: Path) -> dict[str, Any]:
    """Return a record from a file, under current names; refuse anything else."""
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise QuietbitError(
            f"{path} is not a run record: its format is {content.get('format')!r}, not {FORMAT!r}. "
            "Name a file that `quietbit train --out` or an engine's report wrote."
        )
    if content.get("version") not in READ:
        raise QuietbitError(
            f"{path} has version {content.get('version')!r}, and this library reads 1 and 2: "
            "update quietbit."
        )
    return modern(content)


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


@cache
def commit_of(folder: Path) -> str | None:
    """Return the commit of a checkout, with a + where files differ; None outside of one."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        ask = [git, "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode == 0:
        return answer.stdout.strip() or None
    return None


def _point(point: Point) -> dict[str, Any]:
    return {
        "round": point.round,
        "accuracy": point.score.accuracy,
        "loss": point.score.loss if math.isfinite(point.score.loss) else None,
        "epsilon_upper": _finite(point.guarantee.epsilon_upper)
        if point.guarantee is not None
        else None,
        "uplink_bytes": point.uplink_bytes,
        "seconds": point.seconds,
    }


def _guarantee(run: Run) -> dict[str, Any] | None:
    guarantee = run.guarantee
    if guarantee is None:
        return None
    words = {name: getattr(guarantee, name).value for name in ("unit", "adjacency", "trust")}
    epsilon = _finite(guarantee.epsilon_upper)
    return {
        "epsilon_upper": epsilon,
        "delta": guarantee.delta,
        **words,
        "sentence": guarantee.sentence(),
    }


def _finite(value: float) -> float | None:
    if math.isfinite(value):
        return value
    return None
