"""From results to a frontier: the best mean accuracy for every privacy, with its spread over seeds.

Idea     runs that differ by seed alone are one point with a mean and a standard deviation; each
         number of rounds scored makes a point of its own. A point is on the frontier if none costs
         less privacy and is at least as accurate. Where some runs are marked as choosing, they say
         which points are on the frontier, and the other runs what these points are worth: luck that
         chose does not count.
Source   Guo et al. (ICML 2023), section "Experiments": "plot the Pareto frontier".

Runs without a mark choose and report at once, which flatters every mechanism, as in the paper; all
alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, final

__all__ = [
    "Summary",
    "deviation",
    "frontier",
    "reported",
    "rising",
    "same_point",
    "setting_key",
    "summarise",
]


@final
@dataclass(frozen=True, slots=True)
class Summary:
    """One setting after some rounds: mean and deviation of the accuracy over ``seeds`` runs.

    Without privacy ``epsilon_upper`` is infinite; with one seed there is no deviation, and it is 0.
    """

    label: str
    epsilon_upper: float
    accuracy: float
    deviation: float
    seeds: int
    rounds: int
    settings: Mapping[str, Any]


def summarise(results: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """Return a summary per label, setting and number of rounds, of runs that finished.

    Points of a run that was dropped for being far behind count, but where a setting has fewer
    points than runs there is none: the seeds that went on are the luckier ones.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    runs: dict[str, int] = {}
    members: dict[str, tuple[str, int, Mapping[str, Any]]] = {}
    for result in results:
        record = result["record"]
        if record["status"] not in ("finished", "dropped"):
            continue
        settings = _of_all_seeds(record["settings"])
        name = setting_key(result["label"], settings)
        runs[name] = runs.get(name, 0) + 1
        for point in record["points"]:
            key = json.dumps([result["label"], settings, point["round"]], sort_keys=True)
            epsilon = point["epsilon_upper"]
            groups.setdefault(key, []).append(
                (math.inf if epsilon is None else epsilon, point["accuracy"])
            )
            members[key] = (result["label"], point["round"], settings)
    summaries = []
    for key, pairs in groups.items():
        label, rounds, chosen = members[key]
        if len(pairs) < runs[setting_key(label, chosen)]:
            continue
        accuracies = [accuracy for _, accuracy in pairs]
        epsilon = max(
            epsilon for epsilon, _ in pairs
        )  # sampled cohorts differ by seed: the largest holds
        summaries.append(
            Summary(
                label, epsilon, fmean(accuracies), deviation(accuracies), len(pairs), rounds, chosen
            )
        )
    return summaries


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for one value."""
    if len(values) > 1:
        return stdev(values)
    return 0.0


def setting_key(label: str, settings: Mapping[str, Any]) -> str:
    """Equal for runs of one label that differ by seed, rounds and where they are scored alone."""
    return json.dumps([label, _of_all_seeds(settings)], sort_keys=True)


def _of_all_seeds(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if name not in ("seed", "rounds", "evaluate_at")
    }


def frontier(summaries: Iterable[Summary]) -> dict[str, list[Summary]]:
    """For each label its points that no other of the label beats, by growing epsilon."""
    by_label: dict[str, list[Summary]] = {}
    for summary in summaries:
        by_label.setdefault(summary.label, []).append(summary)
    return {
        label: [p for p, _ in rising((p, p.epsilon_upper) for p in points)]
        for label, points in by_label.items()
    }


def reported(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Summary]]:
    """Return each label's frontier: chosen by its choosing runs, as its other runs report it.

    Points without a reporting run are left out.
    """
    choosing: list[Mapping[str, Any]] = []
    reporting: list[Mapping[str, Any]] = []
    for result in results:
        (choosing if result.get("chooses") else reporting).append(result)
    points = summarise(reporting)
    best: dict[str, Summary] = {}
    for point in sorted(points, key=lambda p: p.seeds):
        best[same_point(point)] = point  # the most seeds where runs of several lengths have it
    chosen = frontier(summarise(choosing))
    lines = frontier(point for point in points if point.label not in chosen)
    for label, line in chosen.items():
        lines[label] = [best[same_point(point)] for point in line if same_point(point) in best]
    return {label: line for label, line in lines.items() if line}


def same_point(point: Summary) -> str:
    """Equal for summaries of one setting after as many rounds, however many were planned."""
    settings = {name: value for name, value in point.settings.items() if name != "planned rounds"}
    return json.dumps([point.label, point.rounds, settings], sort_keys=True)


def rising(costs: Iterable[tuple[Summary, float]]) -> list[tuple[Summary, float]]:
    """Return, by growing cost, the points that are more accurate than everything cheaper."""
    chosen: list[tuple[Summary, float]] = []
    for point, cost in sorted(costs, key=lambda pair: (pair[1], -pair[0].accuracy)):
        if not chosen or point.accuracy > chosen[-1][0].accuracy:
            chosen.append((point, cost))
    return chosen
