"""Runs from files, in one form: records of trainings, engines' reports, and results of sweeps.

Idea     a run is a label and a record. A record by itself is labelled by its mechanism and bits; a
         sweep brings its own labels. The same run named twice counts once, or error bars would
         shrink. Runs are compared only where epsilon means the same: one task, unit, adjacency and
         delta make a *comparison*. A budget leaves the settings whose epsilon it covers; runs
         without privacy have no epsilon to compare and are always kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from quietbit.errors import QuietbitError, require
from quietbit_lab.experiment import flower_record
from quietbit_lab.experiment.frontier import Summary, frontier, setting_key, summarise
from quietbit_lab.experiment.packed import read_results
from quietbit_lab.experiment.record import read_json, read_record
from quietbit_lab.experiment.sweep import RESULTS, finished

__all__ = [
    "Comparison",
    "PlacedRun",
    "best_curves",
    "comparable",
    "comparisons",
    "label_of",
    "read_placed_runs",
    "reporting_runs",
    "settings_of",
    "settings_within",
]

NAMES = {
    "vmvu": "vector MVU",
    "imvu": "I-MVU",
    "mvu": "MVU",
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "sign": "SignSGD",
    "skellam": "Skellam",
    "none": "without noise",
}
NEEDED = ("status", "settings", "points", "task")
SHARED = ("delta", "unit", "adjacency")
ENDED = ("finished", "target reached")  # a run that kept to its target ended as planned
# given up for being far behind: its points count, or only the luckier seeds would be left
DROPPED = "dropped"
PUBLIC = "none"  # the mechanism without privacy


@final
@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run with its label in a legend; one that ``chooses`` selects settings for the others."""

    label: str
    record: Mapping[str, Any]
    sweep: str = ""
    chooses: bool = False

    @property
    def mechanism(self) -> str:
        """The mechanism's name in the settings."""
        return str(self.record["settings"].get("mechanism", ""))

    @property
    def trust(self) -> str:
        """Whom the run trusts."""
        trust = (self.record.get("guarantee") or {}).get("trust")
        return str(trust or self.record["settings"].get("trust") or "local")

    @property
    def ended(self) -> bool:
        """Whether the run has scores that count: it came to its end, or was dropped by a rule."""
        return self.record["status"] in (*ENDED, DROPPED) and bool(self.record["points"])

    @property
    def unscored(self) -> bool:
        """Whether the run came to its end without a score of its model."""
        return self.record["status"] in ENDED and not self.record["points"]

    def judged(self, rounds: int) -> bool:
        """Scores along the way make a curve; only where a run was to be judged may it be chosen."""
        if rounds in (self.record["settings"].get("evaluate_at") or ()):
            return True
        return self.record["status"] in ENDED and bool(rounds == self.record["points"][-1]["round"])

    def plain(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the run as `summarise` takes it, with the calibrated strength among its settings.

        Without ``whole`` the points are those where the run was to be judged.
        """
        points = [point for point in self.record["points"] if whole or self.judged(point["round"])]
        if self.record["status"] == DROPPED:
            status = DROPPED
        else:
            status = "finished"
        record = {"status": status, "settings": settings_of(self.record), "points": points}
        return {"label": self.label, "record": record, "chooses": self.chooses}


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs whose epsilons mean the same."""

    task: Mapping[str, Any]
    delta: float
    unit: str
    adjacency: str
    runs: Sequence[PlacedRun]


def read_placed_runs(paths: Sequence[Path]) -> list[PlacedRun]:
    """Every run in these files and folders, each once; a path without a run is refused.

    A file is the record of one training, what a Flower strategy's report saved, or packed results
    (.gz). A folder holds the results of a sweep, or else records.
    """
    placed: list[PlacedRun] = []
    for path in paths:
        if path.is_dir():
            runs = _folder(path)
        elif path.suffix == ".gz":
            runs = _packed(path)
        else:
            runs = [_single(path)]
        if not runs:
            raise QuietbitError(
                f"There are no runs in {path}: name a training's record, an engine's report, or a "
                f"folder with {RESULTS}."
            )
        placed += runs
    unique: dict[str, PlacedRun] = {}
    for run in placed:
        points = [(p["round"], p["accuracy"], p.get("seconds")) for p in run.record["points"]]
        key = json.dumps(
            [run.label, run.record["settings"], run.record["task"], points], sort_keys=True
        )
        unique.setdefault(key, run)
    return list(unique.values())


def label_of(record: Mapping[str, Any]) -> str:
    """Return the mechanism's name and its bits per parameter, such as ``I-MVU, 1 bit``."""
    name = str(record["settings"].get("mechanism", ""))
    bits = record.get("bits", (record.get("mechanism") or {}).get("bits"))
    shown = NAMES.get(name, name)
    if not bits:
        return shown
    return f"{shown}, {bits} bit{'s' if bits != 1 else ''}"


def comparisons(runs: Sequence[PlacedRun]) -> list[Comparison]:
    """Group runs by what their epsilons mean, the largest comparison first.

    Runs without privacy belong to every comparison of their task. A label that stands for several
    trust models is split, and the labels say whom they trust.
    """
    groups: dict[tuple[Any, ...], list[PlacedRun]] = {}
    public: list[tuple[tuple[Any, ...], PlacedRun]] = []
    for run in _named_by_trust(runs):
        terms = run.record.get("guarantee") or run.record["settings"]
        task = json.dumps(run.record["task"], sort_keys=True)
        key = (task, *(terms[name] for name in SHARED))
        if run.mechanism == PUBLIC:
            public.append((key, run))
        else:
            groups.setdefault(key, []).append(run)
    private = list(groups)
    for public_key, run in public:
        for key in [key for key in private if key[0] == public_key[0]] or [public_key]:
            groups.setdefault(key, []).append(run)
    compared = [
        Comparison(json.loads(task), float(delta), str(unit), str(adjacency), members)
        for (task, delta, unit, adjacency), members in groups.items()
    ]
    return sorted(compared, key=lambda comparison: -len(comparison.runs))


def settings_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings with the calibrated strength, without ``evaluate_every``.

    Runs of different length are different settings: calibrated to one target they differ in their
    noise, and otherwise the shorter would count as a seed that the longer lacks.
    """
    settings = {k: v for k, v in record["settings"].items() if k != "evaluate_every"}
    settings["planned rounds"] = settings.get("rounds")
    mechanism = record.get("mechanism") or {}
    inner = mechanism.get("inner") or mechanism
    strengths = {
        "noise_multiplier": inner.get("noise_multiplier", inner.get("scale_multiplier")),
        "design_epsilon": (mechanism.get("design") or {})
        .get("design", {})
        .get("spec", {})
        .get("epsilon"),
        "beta": mechanism.get("beta"),
    }
    calibrated = settings.get("design_epsilon") is None and settings.get("noise_multiplier") is None
    return {**settings, **{k: v for k, v in strengths.items() if calibrated and v is not None}}


def comparable(runs: Sequence[PlacedRun]) -> list[PlacedRun]:
    """Return the runs that ended; refuse them unless their epsilons all mean the same."""
    compared = comparisons([run for run in runs if run.ended])
    ended = sum(run.ended for run in runs)
    require(compared, "number of finished runs", ended, "at least one", "name runs that ended")
    kinds = [
        f"{comparison.task.get('name')}, one {comparison.unit}, {comparison.adjacency}, "
        f"delta {comparison.delta:g}"
        for comparison in compared
    ]
    require(
        len(kinds) == 1,
        "runs of one figure",
        kinds,
        "of one task, unit, adjacency and delta",
        "draw one picture of each kind",
    )
    return list(compared[0].runs)


def reporting_runs(runs: Sequence[PlacedRun]) -> list[PlacedRun]:
    """Return the runs less those that only chose; all of them if none reports."""
    return [run for run in runs if not run.chooses] or list(runs)


def settings_within(
    runs: Sequence[PlacedRun], target: float | None
) -> list[tuple[Summary, PlacedRun]]:
    """Return settings within the target where they are judged, each with one of its runs."""
    runs = reporting_runs(runs)
    first = {setting_key(run.label, settings_of(run.record)): run for run in reversed(runs)}
    points = summarise(run.plain(whole=False) for run in runs)
    pairs = [(point, first[setting_key(point.label, point.settings)]) for point in points]
    return [
        (p, run)
        for p, run in pairs
        if target is None or p.epsilon_upper <= target or run.mechanism == PUBLIC
    ]


def best_curves(
    runs: Sequence[PlacedRun], target: float | None
) -> dict[str, list[tuple[int, float]]]:
    """Return mean accuracies over rounds of each label's best setting within the target."""
    lines = frontier(point for point, _ in settings_within(runs, target))
    every = summarise(run.plain() for run in reporting_runs(runs))
    curves = {}
    for label, line in sorted(lines.items()):
        best = line[-1]
        curve = [
            p
            for p in every
            if p.label == label and p.settings == best.settings and p.rounds <= best.rounds
        ]
        curves[label] = [(p.rounds, p.accuracy) for p in sorted(curve, key=lambda p: p.rounds)]
    return curves


def _named_by_trust(runs: Sequence[PlacedRun]) -> list[PlacedRun]:
    trusts: dict[str, set[str]] = {}
    for run in runs:
        if run.record.get("guarantee"):
            trusts.setdefault(run.label, set()).add(run.trust)
    several = {label for label, names in trusts.items() if len(names) > 1}
    return [
        replace(run, label=f"{run.label} ({run.trust} trust)") if run.label in several else run
        for run in runs
    ]


def _single(path: Path) -> PlacedRun:
    saved = read_json(path)
    flower = saved.get("format") == flower_record.FORMAT
    record = _checked(
        flower_record.flower_record(saved, path) if flower else read_record(path), path
    )
    return PlacedRun(label_of(record), record)


def _folder(folder: Path) -> list[PlacedRun]:
    if (folder / RESULTS).exists():
        return _placed(finished(folder), folder / RESULTS)
    return [_single(path) for path in sorted(folder.glob("*.json"))]


def _packed(path: Path) -> list[PlacedRun]:
    return _placed(read_results(path), path)


def _placed(lines: Sequence[Mapping[str, Any]], path: Path) -> list[PlacedRun]:
    placed = []
    for line in lines:
        record = _checked(line.get("record"), path)
        label = str(line.get("label") or label_of(record))
        placed.append(
            PlacedRun(label, record, str(line.get("sweep", "")), bool(line.get("chooses")))
        )
    return placed


def _checked(record: Any, path: Path) -> dict[str, Any]:
    complete = isinstance(record, dict) and all(name in record for name in NEEDED)
    complete = (
        complete and isinstance(record["settings"], dict) and isinstance(record["points"], list)
    )
    if not complete or not set(SHARED) <= set(record["settings"]):
        raise QuietbitError(
            f"{path} holds a run that is not complete: it must name "
            f"{', '.join((*NEEDED, *SHARED))}. Write it again with `quietbit train --out`."
        )
    for point in record["points"]:
        if not isinstance(point, dict) or not {"round", "accuracy", "epsilon_upper"} <= set(point):
            raise QuietbitError(
                f"{path} holds a run with a damaged point, {point!r}: run it again, or leave the "
                "file out."
            )
    checked: dict[str, Any] = record
    return checked
