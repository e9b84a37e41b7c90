"""The sentence on top of a report: what was learnt, how private it is, and what it cost.

Idea     a reader who reads nothing else should not be misled. The sentence is about the most
         accurate private setting, its epsilon is the guarantee's, rounded up, and says in a factor
         of probabilities what that means; an accuracy that few nodes estimated comes with its
         interval, and a run without a score says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quietbit.privacy.guarantee import shown_epsilon
from quietbit.target import Trust
from quietbit_lab.report.plots import shown_size
from quietbit_lab.report.runs import PUBLIC, Comparison, PlacedRun

__all__ = ["summary"]

OBSERVERS = {
    Trust.LOCAL: "a server that sees every payload",
    Trust.CENTRAL: "people who see what a trusted server publishes",
    Trust.SECURE_AGGREGATION: "a server that sees only sums",
    Trust.SHUFFLED: "people who see the result alone",
}
LARGEST_FACTOR = 1e6
FEW_ANSWERS = 100


def summary(comparison: Comparison, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return the sentence about a comparison; ``rows`` are by column, labels index ``names``."""
    private = [row for row in rows if row["epsilon"] is not None]
    untrusting = {run.label for run in comparison.runs if Trust(run.trust) is not Trust.CENTRAL}
    without_trust = [row for row in private if names[row["label"]] in untrusting]
    private = without_trust or private
    scored = [row for row in private if row["chosen"]]
    if scored:
        best = max(scored, key=lambda row: (row["accuracy"], -row["epsilon"]))
    elif private:
        best = max(private, key=lambda row: row["epsilon"])
    else:
        return "No run here was private: there is no guarantee at all."
    candidates = [run for run in comparison.runs if run.label == names[best["label"]]]
    run = next(run for run in candidates if bool(run.record["points"]) or not best["chosen"])
    parts = [
        _learnt(best, rows, comparison, run),
        _private(best, comparison, run),
        _cost(best, run),
    ]
    return "; ".join(part for part in parts if part) + "."


def _learnt(
    best: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    comparison: Comparison,
    run: PlacedRun,
) -> str:
    if not best["chosen"]:
        rounds = int(best["rounds"])
        size = int(run.record.get("dimension") or 0)
        trained = f"A model of {size:,} parameters was trained in {rounds:,} rounds"
        return f"{trained}, and its accuracy was not measured"
    public = [row["accuracy"] for row in rows if row["epsilon"] is None and row["chosen"]]
    if public:
        beside = f" ({100 * max(public):.1f} % without privacy)"
    else:
        beside = ""
    several = len({other.label for other in comparison.runs if other.mechanism != PUBLIC}) > 1
    others_trust = Trust(run.trust) is not Trust.CENTRAL and any(
        other.trust == "central" for other in comparison.runs
    )
    if others_trust:
        without = " without a trusted server"
    else:
        without = ""
    if several:
        model = f"The most accurate private model{without} ({run.label})"
    else:
        model = "The model"
    last = run.record["points"][-1]
    if "answers" in last:
        between = (
            f"between {100 * last['low']:.0f} and {100 * last['high']:.0f} %, 95 % of the time"
        )
        if last["answers"] < FEW_ANSWERS:
            few = ", which are few"
        else:
            few = ""
        beside = (
            f" ({between}, from the randomised answers of {last['answers']:,} nodes{few}){beside}"
        )
    return f"{model} is right in {100 * best['accuracy']:.1f} % of test cases{beside}"


def _private(best: Mapping[str, Any], comparison: Comparison, run: PlacedRun) -> str:
    epsilon = float(best["epsilon"])
    who = OBSERVERS[Trust(run.trust)]
    means = (
        f"epsilon ≤ {shown_epsilon(epsilon)} at delta {comparison.delta:g}, {comparison.adjacency}"
    )
    factor = math.exp(min(epsilon, 700.0))
    if factor > LARGEST_FACTOR:
        return f"its promise to one {comparison.unit} means next to nothing ({means})"
    if factor < 10:
        shown = f"{math.ceil(factor * 10) / 10:g}"
    else:
        shown = f"{math.ceil(factor):,}"
    return (
        f"the data of any one {comparison.unit} change the probability of whatever {who} can "
        f"observe by a factor of at most {shown} ({means})"
    )


def _cost(best: Mapping[str, Any], run: PlacedRun) -> str:
    each = best["bytes"]
    if each is None:
        return ""
    if best["uplink"] is not None:
        total = best["uplink"]
    else:
        total = run.record.get("uplink_bytes")
    if not total:
        in_all = ""
    else:
        in_all = f", {shown_size(total)} in all"
    return f"a client sent {shown_size(each)} per round{in_all}"
