"""A batch on disk: where it was, so that a machine lent in pieces loses no round.

Idea     parameters and momentum of the runs alive, the points of all, and how far they were; cohorts and keys follow
         from the settings. The file appears whole or not at all, and names the settings it belongs to.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from quietbit._validate import QuietbitError
from quietbit.simulate.problem import Score
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from quietbit.simulate.loop import Point
from quietbit_lab.experiment.files import write_whole
from quietbit_lab.task.linear_batch import Batch
from quietbit_lab.task.linear_lane import Lane

__all__ = ["restore", "save"]

VERSION = 1


def save(batch: Batch, path: Path) -> None:
    """Write the state of a batch."""
    said = {
        "version": VERSION,
        "batch": batch.identity,
        "number": batch.number,
        "seconds": batch.seconds,
        "alive": batch.alive,
        "lanes": [_lane(lane) for lane in batch.lanes],
    }
    arrays = {"w": batch.w.cpu().numpy(), "v": batch.v.cpu().numpy(), "said": np.array(json.dumps(said))}
    for place, lane in enumerate(batch.lanes):
        if lane.counts is not None:
            arrays[f"counts{place}"] = lane.counts.astype(np.int32)

    def write(file: IO[bytes]) -> None:
        np.savez(file, **arrays)

    write_whole(path, write)


def restore(batch: Batch, path: Path) -> bool:
    """Continue a new batch from a checkpoint of the same settings; False where there is none."""
    if not path.exists():
        return False
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as kept:
            said = json.loads(str(kept["said"]))
            if said["version"] != VERSION or said["batch"] != batch.identity:
                return False
            for place, (lane, was) in enumerate(zip(batch.lanes, said["lanes"], strict=True)):
                counts = kept[f"counts{place}"].astype(np.int64) if f"counts{place}" in kept.files else None
                _fill(lane, was, counts)
            batch.replace_state(said["number"], said["seconds"], said["alive"], kept["w"], kept["v"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise QuietbitError(f"The checkpoint {path} is damaged: remove it to start its batch anew.") from error
    return True


def _lane(lane: Lane) -> dict[str, Any]:
    points = []
    for point in lane.points:
        guarantee = asdict(point.guarantee) if point.guarantee is not None else None
        if guarantee is not None:
            guarantee |= {name: guarantee[name].value for name in ("unit", "adjacency", "trust")}
        points.append(
            [point.round, point.score.accuracy, point.score.loss, guarantee, point.uplink_bytes, point.seconds]
        )
    return {
        "points": points,
        "status": lane.status,
        "reason": lane.reason,
        "rounds": lane.rounds,
        "behind": lane.behind,
        "draws": lane.draws,
    }


def _fill(lane: Lane, was: dict[str, Any], counts: Any) -> None:
    lane.points = []
    for number, accuracy, loss, said, sent, seconds in was["points"]:
        guarantee = None
        if said is not None:
            words = (Unit(said["unit"]), Adjacency(said["adjacency"]), Trust(said["trust"]))
            guarantee = Guarantee(said["epsilon_upper"], said["delta"], *words)
        lane.points.append(Point(number, Score(accuracy, loss), guarantee, sent, seconds))
    lane.status, lane.reason, lane.rounds = was["status"], was["reason"], was["rounds"]
    lane.behind, lane.draws, lane.counts = was["behind"], was["draws"], counts
