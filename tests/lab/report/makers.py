"""Runs of a report for tests: small real trainings on the digits, seeded."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from federation.simulate.makers import chosen
from quietbit.federation.simulate.loop import simulate
from quietbit_lab.experiment.record import run_record
from quietbit_lab.report.runs import PlacedRun, label_of
from quietbit_lab.task.registry import TaskSpec, build_task

STEPS = {"gaussian": 0.6, "sign": 0.3, "imvu": 0.6, "none": 2.0}
EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)> {{data}}"


@cache
def runs() -> tuple[PlacedRun, ...]:
    """Return twenty runs, which are trained once per run of the tests."""
    folder = Path(os.environ["QUIETBIT_CACHE"])
    path = folder / "runs.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps([[run.label, run.record] for run in _trained()]))
        own.replace(path)
    return tuple(PlacedRun(label, record) for label, record in json.loads(path.read_text()))


def _trained() -> list[PlacedRun]:
    """Three mechanisms, three epsilons and two seeds, and two runs without noise."""
    spec = TaskSpec("digits")
    problem = build_task(spec)
    found = []
    for mechanism, step in STEPS.items():
        for target in (5.0, 10.0, 20.0) if mechanism != "none" else (None,):
            for seed in (1, 2):
                setup = chosen(
                    mechanism=mechanism,
                    lr=step,
                    rounds=6,
                    cohort=60,
                    clip=1.0,
                    momentum=0.8,
                    epsilon=target,
                    evaluate_every=2,
                    seed=seed,
                    rng="seeded",
                )
                record = run_record(simulate(problem, *setup), spec.to_json())
                found.append(PlacedRun(label_of(record), record))
    return found


def changed(run: PlacedRun, label: str | None = None, **parts: object) -> PlacedRun:
    """The run with other parts of its record; ``settings`` are merged."""
    record = {**run.record, **parts}
    if "settings" in parts:
        record["settings"] = {**run.record["settings"], **parts["settings"]}
    return PlacedRun(run.label if label is None else label, record)


def sweep(
    settings: int, seeds: int = 3, rounds: tuple[int, ...] = (50, 100, 200, 400)
) -> list[PlacedRun]:
    """Many runs from one real record: for size and speed, not for their numbers."""
    base = next(run for run in runs() if run.record["settings"]["mechanism"] == "imvu")
    found = []
    for number in range(settings):
        for seed in range(seeds):
            points = [
                {
                    "round": count,
                    "epsilon_upper": 0.1 * (1 + number % 40) * math.sqrt(count),
                    "accuracy": 0.5 + 0.4 * math.sin(number + 0.01 * seed + count),
                    "uplink_bytes": 146 * count,
                }
                for count in rounds
            ]
            own = {"lr": 0.001 * (1 + number), "seed": seed, "evaluate_at": list(rounds)}
            found.append(changed(base, settings=own, points=points))
    return found


def write_results(folder: Path, some: Sequence[PlacedRun]) -> Path:
    """Write the results of a sweep named "mine"."""
    lines = [
        {"sweep": "mine", "job": str(place), "label": run.label, "record": run.record}
        for place, run in enumerate(some)
    ]
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
