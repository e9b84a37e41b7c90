"""An engine's saved report as the record of a training, which the report page reads.

Idea     the settings of a run name its mechanism completely, so it is built from them again, and
         accepted if its identity is the one that the nodes' releases carried. Points are the rounds
         that the server's own ``evaluate_fn`` scored with an accuracy or, where it scored none,
         those whose model nodes evaluated privately; what every round had cost by then is in the
         file, and the last point costs what the guarantee says. A run without either has no points,
         and no curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietbit.errors import QuietbitError
from quietbit.federation.plan import Plan
from quietbit.federation.report import FORMAT, VERSION
from quietbit.mechanism.registry import describe, identity_of
from quietbit_lab.experiment.groups import groups_of_run
from quietbit_lab.experiment.record import plan_table

__all__ = ["FORMAT", "flower_record"]

ACCURACY = "accuracy"
NEEDED = ("settings", "rounds", "scores", "dimension", "identity", "guarantee", "run")
OF_PLAN = (
    *(
        "mechanism",
        "clip",
        "norm",
        "epsilon",
        "delta",
        "adjacency",
        "trust",
        "min_honest_clients",
        "keep",
        "bits",
    ),
    *("levels", "beta", "clamp", "decoder", "design_epsilon", "noise_multiplier"),
)


def flower_record(saved: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the record of a run that an engine's report kept; refuse one that is damaged."""
    if saved.get("version") != VERSION:
        raise QuietbitError(
            f"{path} has version {saved.get('version')!r}, and this library reads {VERSION}: "
            "update quietbit."
        )
    missing = [name for name in NEEDED if name not in saved]
    if missing:
        raise QuietbitError(
            f"{path} holds an incomplete federated run without {', '.join(missing)}: save it again "
            "with strategy.report().save(...)."
        )
    try:
        return _record(saved)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QuietbitError(
            f"{path} holds a damaged federated run ({str(error).rstrip('.')}): save it again with "
            "strategy.report().save(...)."
        ) from error


def _record(saved: Mapping[str, Any]) -> dict[str, Any]:
    settings = Plan.from_run_config(saved["settings"])
    rounds = saved["rounds"]
    mechanism = settings.mechanism_for(int(saved["dimension"]))
    same = identity_of(mechanism).hex() == saved["identity"]
    answered = [entry for entry in rounds if not entry["skipped"]]
    sent = sum(int(entry["uplink"]) for entry in rounds)
    replies = sum(int(entry["answered"]) for entry in rounds)
    after = {int(entry["round"]): place for place, entry in enumerate(rounds, 1)}
    points: list[dict[str, Any]] = []
    epsilon = (saved["guarantee"] or {}).get("epsilon_upper")
    # A report whose rounds do not add up to its guarantee left evaluations out of them: none of
    # them is shown.
    below = (
        bool(rounds)
        and rounds[-1]["epsilon_upper"] is not None
        and rounds[-1]["epsilon_upper"] != epsilon
    )
    for score in _scores(saved):
        number = int(score["round"])
        if number in after and isinstance(score.get(ACCURACY), int | float):
            passed = rounds[: after[number]]
            loss = score.get("loss")
            reached = passed[-1]["epsilon_upper"]
            points.append(
                {
                    "round": number,
                    "accuracy": float(score[ACCURACY]),
                    "loss": loss if isinstance(loss, int | float) and math.isfinite(loss) else None,
                    "epsilon_upper": epsilon if reached is None or below else reached,
                    "uplink_bytes": sum(int(entry["uplink"]) for entry in passed),
                    "seconds": None,
                    **(_interval(score) if "answers" in score else {}),
                }
            )
    if points:
        points[-1]["epsilon_upper"] = epsilon
    table = plan_table(settings)
    chosen = {name: table[name] for name in OF_PLAN}
    cohort = max((int(entry["asked"]) for entry in rounds), default=0)
    return {
        "status": "finished",
        "reason": None,
        "task": {"name": f"a federated run of {int(saved['dimension']):,} parameters"},
        "settings": {
            **chosen,
            "unit": settings.unit.value,
            "cohort": cohort,
            "rounds": len(rounds),
        },
        "rounds": len(answered),
        "mechanism": describe(mechanism) if same else None,
        "bits": mechanism.layout.bits if same else None,
        "dimension": int(saved["dimension"]),
        "points": points,
        "guarantee": saved["guarantee"],
        "groups": groups_of_run(settings, saved.get("evaluations") or ()),
        "bytes_per_client": round(sent / replies) if replies else None,
        "uplink_bytes": sent,
    }


def _scores(saved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the server's accuracies, or else the nodes' private ones, the last of each round."""
    scored = [entry for entry in saved["scores"] if isinstance(entry.get(ACCURACY), int | float)]
    if scored:
        return scored
    evaluations = [
        evaluation
        for evaluation in saved.get("evaluations", ())
        if evaluation["metric"] == ACCURACY and len(evaluation["estimates"]) == 1
    ]
    estimates = {int(evaluation["round"]): evaluation["estimates"][0] for evaluation in evaluations}
    return [
        {
            "round": number,
            ACCURACY: min(max(float(estimate["value"]), 0.0), 1.0),
            **_interval(estimate),
        }
        for number, estimate in sorted(estimates.items())
    ]


def _interval(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an estimate says of its own precision."""
    return {name: estimate[name] for name in ("low", "high", "answers")}
