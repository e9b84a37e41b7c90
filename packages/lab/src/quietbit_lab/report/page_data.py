"""From runs to the plain data of a report page: everything the page shows, and nothing else.

Idea     runs that differ by seed alone become one row with a mean and a deviation, and what all
         rows of a comparison share is said once. Three thousand trainings stay below a megabyte.
Symbols  a row is [label, setting, rounds, epsilon, accuracy, deviation, seeds, bytes per client,
         bytes in all, chosen, mechanism, state]; the page's script knows the same order by
         `COLUMNS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from quietbit.errors import require
from quietbit.privacy.guarantee import rounded_up
from quietbit_lab.experiment.frontier import Summary, frontier, setting_key, summarise
from quietbit_lab.experiment.record import versions
from quietbit_lab.plot.figure import looks
from quietbit_lab.report.page_mechanism import Pictures
from quietbit_lab.report.page_summary import summary
from quietbit_lab.report.page_words import (
    guarantee_template,
    setting_words,
    spelt_out,
    task_words,
    trust_words,
)
from quietbit_lab.report.runs import PUBLIC, Comparison, PlacedRun, comparisons, settings_of

__all__ = ["COLUMNS", "page_data"]

COLUMNS = (
    *("label", "setting", "rounds", "epsilon", "accuracy", "deviation", "seeds"),
    *("bytes", "uplink", "chosen", "mechanism", "state"),
)
UNSCORED = "not scored: neither the server's evaluate_fn nor quietbit.evaluate gave an accuracy"
# How a row may be chosen; 0: it is only a point of a curve.
JUDGED = 1
UNBEATEN = 2


def page_data(runs: Sequence[PlacedRun], title: str) -> dict[str, Any]:
    """Return the data of a page as plain values; runs without a score are only listed."""
    require(runs, "number of runs", len(runs), "at least one")
    compared = comparisons(runs)
    labels = sorted(
        {run.label: run.mechanism for comparison in compared for run in comparison.runs}.items()
    )
    labels.sort(key=lambda pair: pair[1] == PUBLIC)
    names = [name for name, _ in labels]
    pictures = Pictures()
    return {
        "title": title,
        "columns": list(COLUMNS),
        "labels": [
            {"name": name, "mechanism": mechanism, **asdict(look)}
            for (name, mechanism), look in zip(
                labels, looks([mechanism for _, mechanism in labels]), strict=True
            )
        ],
        "comparisons": [_Table(comparison, names, pictures).data() for comparison in compared],
        "mechanisms": pictures.found,
        "made": _made(runs),
    }


class _Table:
    """The rows of one comparison, with settings and mechanisms numbered as they are first seen."""

    def __init__(self, comparison: Comparison, names: list[str], pictures: Pictures) -> None:
        self.comparison = comparison
        self.names = names
        self.pictures = pictures
        self.settings: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}

    def data(self) -> dict[str, Any]:
        comparison = self.comparison
        rows = [*self._ended(), *(self._broken(run) for run in comparison.runs if not run.ended)]
        common, varying = _split(self.settings)
        named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        trusts = {run.label: run.trust for run in comparison.runs if run.mechanism != PUBLIC}
        return {
            "task": task_words(comparison.task),
            "summary": summary(comparison, named, self.names),
            "delta": comparison.delta,
            "delta_words": f"{comparison.delta:g}",
            "unit": comparison.unit,
            "adjacency": comparison.adjacency,
            "words": spelt_out(comparison.unit, comparison.adjacency, comparison.delta),
            "trusts": {
                self.names.index(label): {
                    "words": trust_words(trust),
                    "sentence": guarantee_template(
                        comparison.unit, comparison.adjacency, trust, comparison.delta
                    ),
                }
                for label, trust in sorted(trusts.items())
            },
            "runs": len(comparison.runs),
            "dimension": max(
                (int(run.record.get("dimension") or 0) for run in comparison.runs), default=0
            ),
            "common": common,
            "settings": varying,
            "rows": rows,
            "groups": self._groups(),
        }

    def _groups(self) -> list[dict[str, Any]]:
        """Return the accuracies by group, of every run whose evaluations named groups."""
        tables = []
        for run in self.comparison.runs:
            groups = run.record.get("groups")
            if groups is not None:
                epsilon = run.record["guarantee"]["epsilon_upper"]
                shown = float(rounded_up(epsilon, 4))
                tables.append({"label": self.names.index(run.label), "epsilon": shown, **groups})
        return tables

    def _ended(self) -> list[list[Any]]:
        """Return a row for each label, setting and number of rounds, over seeds."""
        first: dict[
            str, PlacedRun
        ] = {}  # one run for each label and settings, for what is equal over seeds
        plain = []
        for run in self.comparison.runs:
            if run.ended:
                plain.append(run.plain())
                key = setting_key(run.label, plain[-1]["record"]["settings"])
                first.setdefault(key, run)
        points = summarise(plain)
        runs = [first[setting_key(point.label, point.settings)] for point in points]
        worth = [point for point, run in zip(points, runs, strict=True) if run.judged(point.rounds)]
        rank = {id(point): JUDGED for point in worth}
        rank |= {id(point): UNBEATEN for line in frontier(worth).values() for point in line}
        return [
            self._row(point, run, rank.get(id(point), 0))
            for point, run in zip(points, runs, strict=True)
        ]

    def _row(self, point: Summary, run: PlacedRun, chosen: int) -> list[Any]:
        record = run.record
        # Under central trust noise is added by the server: what leaves a client is the plain
        # update.
        drawn = chosen == UNBEATEN and run.trust != "central"
        sent = next(
            (p.get("uplink_bytes") for p in record["points"] if p["round"] == point.rounds), None
        )
        return [
            self.names.index(point.label),
            self._place(point.settings),
            point.rounds,
            float(rounded_up(point.epsilon_upper, 4))
            if math.isfinite(point.epsilon_upper)
            else None,
            round(point.accuracy, 5),
            round(point.deviation, 5),
            point.seeds,
            record.get("bytes_per_client"),
            sent,
            chosen,
            self.pictures.place(record) if drawn else -1,
            "",
        ]

    def _broken(self, run: PlacedRun) -> list[Any]:
        """Return the row of a run that did not end as planned, which is listed but never drawn."""
        record = run.record
        if record["points"]:
            last = record["points"][-1]
        else:
            last = {}
        epsilon = (record.get("guarantee") or {}).get("epsilon_upper")
        return [
            self.names.index(run.label),
            self._place(settings_of(record)),
            record.get("rounds", 0),
            float(rounded_up(epsilon, 4)) if epsilon is not None else None,
            last.get("accuracy"),
            0.0,
            1,
            record.get("bytes_per_client"),
            last.get("uplink_bytes", record.get("uplink_bytes")),
            0,
            -1,
            UNSCORED
            if run.unscored
            else f"{record['status']}: {record.get('reason') or 'no reason was kept'}",
        ]

    def _place(self, settings: Mapping[str, Any]) -> int:
        """Return the number of these settings, in the words that the page uses for them."""
        words = setting_words(settings).items()
        shown = {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in words
        }
        key = json.dumps(shown, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self.settings)
            self.settings.append(shown)
        return self._places[key]


def _split(settings: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what all settings have in common, once, and the rest of each."""
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    common = {
        n: settings[0].get(n)
        for n in names
        if len({json.dumps(setting.get(n)) for setting in settings}) == 1
    }
    return common, [{k: v for k, v in setting.items() if k not in common} for setting in settings]


def _made(runs: Sequence[PlacedRun]) -> dict[str, Any]:
    """How the page and its runs came about."""
    of_runs: dict[str, set[str]] = {}
    for run in runs:
        for name, version in (run.record.get("versions") or {}).items():
            of_runs.setdefault(str(name), set()).add(str(version))
    return {
        "by": f"quietbit {versions().get('quietbit', '')}".strip(),
        "versions": {name: sorted(values) for name, values in sorted(of_runs.items())},
        "commits": sorted({str(run.record["commit"]) for run in runs if run.record.get("commit")}),
        "runs": len(runs),
        "seeded": any(run.record["settings"].get("rng") == "seeded" for run in runs),
    }
