"""Accuracy of each group of people, from an evaluation whose cells are right and wrong per group.

Idea     with ``evaluate.groups`` a node's answer names one of two cells per group: an example of
         the group that the model gets right, or one that it gets wrong. A group's accuracy is the
         share of the first among both.
Symbols  r, w: shares of all examples that are in the group and right, and wrong; a = r / (r + w).
Source   the union bound: a rises with r and falls with w, so that intervals of r and w at 97.5 %
         each give one of a at 95 %. It covers the coins and the choice of clients, as those of
         `quietbit.federation.parts.evaluation` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quietbit.federation.intervals import clopper_pearson
from quietbit.federation.parts.evaluation import DOUBT, Evaluation
from quietbit.federation.plan import Plan

__all__ = ["group_accuracies", "groups_of_run"]


def groups_of_run(plan: Plan, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the accuracies by group of a run's last evaluation with an answer, or None.

    ``evaluations`` are those of an engine's report, as its JSON has them.
    """
    if plan.evaluate is None or plan.evaluation is None or not plan.evaluate.group_names:
        return None
    answered = [
        entry
        for entry in evaluations
        if entry["metric"] == plan.evaluate.metric and entry["estimates"]
    ]
    if not answered:
        return None
    last = answered[-1]
    shares = [float(estimate["value"]) for estimate in last["estimates"]]
    answers = int(last["estimates"][0]["answers"])
    return {
        "round": int(last["round"]),
        "answers": answers,
        "groups": group_accuracies(plan.evaluation, plan.evaluate.group_names, shares, answers),
    }


def group_accuracies(
    evaluation: Evaluation, names: Sequence[str], shares: Sequence[float], answers: int
) -> list[dict[str, Any]]:
    """Return each group's accuracy with a 95 % interval, and its share of all examples.

    ``shares`` are the estimated shares of the cells: right and wrong of the first group, of the
    second, and so on. The accuracy of a group whose share is estimated as 0 is None.
    """
    groups = []
    for name, right, wrong in zip(names, shares[::2], shares[1::2], strict=True):
        least_right, most_right = _interval(evaluation, right, answers)
        least_wrong, most_wrong = _interval(evaluation, wrong, answers)
        share = right + wrong
        groups.append(
            {
                "name": name,
                "accuracy": right / share if share > 0 else None,
                "low": _ratio(least_right, most_wrong, otherwise=0.0),
                "high": _ratio(most_right, least_wrong, otherwise=1.0),
                "share": min(share, 1.0),
            }
        )
    return groups


def _interval(evaluation: Evaluation, share: float, answers: int) -> tuple[float, float]:
    """Return an interval of a cell's share that fails with half of the chance that is allowed."""
    hits = evaluation.mechanism.frequency(share) * answers
    ends = clopper_pearson(min(max(hits, 0.0), answers), answers, DOUBT / 4)
    low, high = (min(max(float(evaluation.mechanism.share(end)), 0.0), 1.0) for end in ends)
    return low, high


def _ratio(right: float, wrong: float, otherwise: float) -> float:
    if right + wrong == 0:
        return otherwise
    return right / (right + wrong)
