"""Which settings count: those within a target epsilon, and of each mechanism the best.

Idea     runs become settings with a mean over seeds; a target leaves those whose epsilon it covers. Runs without
         privacy have no epsilon to compare and are always kept, under their own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quietbit._validate import require
from quietbit_lab.experiment.frontier import Summary, frontier, summarise
from quietbit_lab.report.runs import PUBLIC, PlacedRun, comparisons, settings_of

__all__ = ["best_curves", "comparable", "settings_within"]


def comparable(runs: Sequence[PlacedRun]) -> list[PlacedRun]:
    """The runs that came to their end, if their epsilons all mean the same; else they are refused."""
    compared = comparisons([run for run in runs if run.ended])
    require(compared, "runs", f"{len(runs)} runs, none finished", "at least one that came to its end")
    kinds = [f"{one.task.get('name')}, one {one.unit}, {one.adjacency}, delta {one.delta:g}" for one in compared]
    require(len(kinds) == 1, "runs of one figure", kinds, "of one task, unit, adjacency and delta")
    return list(compared[0].runs)


def settings_within(runs: Sequence[PlacedRun], target: float | None) -> list[tuple[Summary, PlacedRun]]:
    """Settings whose epsilon is at most the target, where they were to be judged, each with one of its runs."""
    first = {_key(run.label, settings_of(run.record)): run for run in reversed(runs)}
    points = summarise(run.plain(whole=False) for run in runs)
    found = [(point, first[_key(point.label, point.settings)]) for point in points]
    return [(p, run) for p, run in found if target is None or p.epsilon_upper <= target or run.mechanism == PUBLIC]


def best_curves(runs: Sequence[PlacedRun], target: float | None) -> dict[str, list[tuple[int, float]]]:
    """Mean accuracy over rounds of the best setting of each label within the target, up to where it was judged."""
    lines = frontier(point for point, _ in settings_within(runs, target))
    every = summarise(run.plain() for run in runs)
    curves = {}
    for label, line in sorted(lines.items()):
        best = line[-1]
        own = [p for p in every if p.label == label and p.settings == best.settings and p.rounds <= best.rounds]
        curves[label] = [(p.rounds, p.accuracy) for p in sorted(own, key=lambda p: p.rounds)]
    return curves


def _key(label: str, settings: Mapping[str, Any]) -> str:
    kept = {k: v for k, v in settings.items() if k not in ("seed", "rounds", "evaluate_at")}
    return json.dumps([label, kept], sort_keys=True)
