"""Stages of a sweep: some seeds choose, others report.

Idea     the whole grid is run on the choosing seeds, runs far behind dropped on the way. Their
         frontier says which settings are worth reporting, and until which round; only those are run
         on the reporting seeds. Both stages are killed and resumed like any sweep: what is to be
         reported follows from the results that are there.
Symbols  apart: chosen points of a label are at least this factor apart in epsilon; the last of a
         crowd stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from quietbit_lab.experiment.frontier import Summary, frontier, setting_key, summarise
from quietbit_lab.experiment.grid import Job, Sweep
from quietbit_lab.experiment.record import Setting
from quietbit_lab.experiment.sweep import finished, pending

__all__ = ["RunStage", "reporting", "run_stages"]

RunStage: TypeAlias = Callable[
    [Sweep, bool, float | None], int
]  # stage, resume, minutes: how many were run


def run_stages(
    sweep: Sweep, folder: Path, run: RunStage, *, resume: bool, minutes: float | None
) -> tuple[int, int]:
    """Run what is left of a sweep by stages; return the jobs run, and left of the last stage."""
    began = time.monotonic()
    ran = run(sweep, resume, minutes)
    left = len(pending(sweep, folder, resume=True))
    if sweep.race is None or left:
        return ran, left
    second = reporting(sweep, finished(folder))
    spent = (time.monotonic() - began) / 60
    if minutes is None or spent < minutes:
        ran += run(second, True, None if minutes is None else minutes - spent)
    return ran, len(pending(second, folder, resume=True))


def reporting(sweep: Sweep, results: Sequence[Mapping[str, Any]]) -> Sweep:
    """Return the jobs that report what choosing jobs selected, without known ones."""
    if sweep.race is None:
        return sweep
    jobs = {job.identity: job for job in sweep.jobs}
    choosing = [result for result in results if result["job"] in jobs]
    first = {setting_key(job.label, job.setting.to_json()): job for job in reversed(sweep.jobs)}
    last: dict[str, int] = {}
    for line in frontier(summarise(choosing)).values():
        for point in thinned(line, sweep.race.apart):
            key = setting_key(point.label, point.settings)
            last[key] = max(last.get(key, 0), point.rounds)
    known = _known(result for result in results if result["job"] not in jobs)
    chosen = []
    for seed in sweep.race.seeds:
        for key, rounds in last.items():
            job = _until(first[key], rounds, seed)
            if known.get((key, seed), 0) < rounds:
                chosen.append(job)
    return Sweep(sweep.name, sweep.claim, tuple(chosen))


def thinned(line: Sequence[Summary], apart: float) -> list[Summary]:
    """Points at least this factor apart in epsilon, from the largest down."""
    spaced: list[Summary] = []
    for point in reversed(line):
        if not spaced or point.epsilon_upper * apart <= spaced[-1].epsilon_upper:
            spaced.append(point)
    return spaced


def _known(results: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """Return how far each setting and seed was run: a longer run covers a shorter one.

    Runs of the reporting stage itself are jobs with names, and are found by those.
    """
    known: dict[tuple[str, int], int] = {}
    for result in results:
        record = result["record"]
        if record["status"] == "finished" and record["points"]:
            settings = record["settings"]
            key = (setting_key(result["label"], settings), int(settings["seed"]))
            known[key] = max(known.get(key, 0), int(record["points"][-1]["round"]))
    return known


def _until(job: Job, rounds: int, seed: int) -> Job:
    values = job.setting.to_json()
    scored = [number for number in job.setting.training.evaluate_at if number <= rounds]
    values |= {"rounds": rounds, "evaluate_at": scored, "seed": seed}
    return Job(Setting.from_json(values), job.task, job.label)
