"""Figures 5 and 6 on the reduced grid: one seed for every step size, then more seeds for the best of them.

    python experiments/run_femnist.py --data DIR --out runs/femnist --model linear --workers 2
    python experiments/run_femnist.py --data DIR --out runs/femnist --device cuda --workers 14 --seconds 230

1. Every training of `fig5-femnist.toml --reduced`, which has one seed, and a few without noise.
2. For each mechanism and epsilon, the step size that did best, with the other seeds.
3. The other numbers of bits of `fig6-femnist.toml --reduced`, all seeds, at the step size that was best for one bit
   and the same epsilon.

With `--model linear` the files are those that end in -linear, for a linear model in place of the network. Needed are
numpy, scipy and torch alone; a call continues where an earlier one was stopped. Several trainings share one GPU, a
process each: a round is a few milliseconds of it, and the noise is drawn on the processor meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from quietbit._files import append_line
from quietbit.plan.plan import RoundPlan
from quietbit.simulate.problem import Problem
from quietbit_lab.experiment.grid import Job, Sweep, read_sweep
from quietbit_lab.experiment.record import Setting
from quietbit_lab.experiment.sweep import RESULTS, finished, run_sweep
from quietbit_lab.task.registry import TaskSpec, build_task

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
BEST = 1
ONE_BIT = "I-MVU, 1 bit"
NOISELESS = {"cnn": (0.05, 0.1, 0.2), "linear": (0.3, 1.0, 3.0)}
ALIKE = ("cohort", "clip", "unit", "participation", "rng", "adjacency")


class OutOfTime(Exception):
    """The time that was given is over."""


def make_problem(data: str, device: str, task: Mapping[str, Any], seed: int) -> Problem:
    """The problem of a task on a device; worker processes find it by name."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True  # so that a record can be repeated
    return build_task(TaskSpec.from_json(task), data=Path(data), seed=seed, device=device)


def best_step_sizes(results: Iterable[Mapping[str, Any]], count: int) -> dict[tuple[str, float], list[float]]:
    """For each label and target the step sizes with most seeds and, among these, the best mean final accuracy."""
    found: dict[tuple[str, float], dict[float, list[float]]] = {}
    for line in results:
        record = line["record"]
        if record["status"] == "finished":
            settings = record["settings"]
            by_lr = found.setdefault((line["label"], settings["epsilon"] or 0.0), {})
            by_lr.setdefault(settings["lr"], []).append(record["points"][-1]["accuracy"])
    return {key: sorted(by_lr, key=lambda lr: -sum(by_lr[lr]) / len(by_lr[lr]))[:count] for key, by_lr in found.items()}


def without_noise(job: Job, step_sizes: Iterable[float]) -> list[Job]:
    """The same training without noise, which has step sizes of its own: what all others are held against."""
    plan = RoundPlan("none", **{name: getattr(job.setting.plan, name) for name in ALIKE})
    rates = [replace(job.setting.training, lr=lr) for lr in step_sizes]
    return [Job(Setting(plan, training), job.task, "without noise") for training in rates]


def with_seeds(jobs: Iterable[Job], seeds: Iterable[int]) -> list[Job]:
    """The same jobs under these seeds."""
    return [replace(job, setting=job.setting.with_seed(seed)) for seed in seeds for job in jobs]


def main() -> None:
    """Run the three stages, as far as time allows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder that holds femnist/")
    parser.add_argument("--out", type=Path, required=True, help="where results go, a folder for each figure")
    parser.add_argument("--model", default="cnn", choices=sorted(NOISELESS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long; 0: when all is done")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # for the workers, which run side by side
    began, build = time.monotonic(), partial(make_problem, given.data, given.device)

    def told(done: int, count: int, result: dict[str, Any]) -> None:
        last = result["record"]["points"][-1]
        settings = result["record"]["settings"]
        print(
            f"{time.monotonic() - began:6.0f} s  {done} of {count}  {result['label']}, epsilon "
            f"{settings['epsilon']}, lr {settings['lr']}, seed {settings['seed']}: "
            f"{100 * last['accuracy']:.1f} % in {result['record']['seconds']:.0f} s",
            flush=True,
        )

    def run(sweep: Sweep, jobs: list[Job]) -> None:
        chosen = replace(sweep, jobs=tuple(jobs))
        run_sweep(chosen, given.out / sweep.name, build, workers=given.workers, resume=True, told=told)

    def stop(number: int, frame: Any) -> None:
        raise OutOfTime

    ending = "" if given.model == "cnn" else f"-{given.model}"
    fig5, fig6 = (read_sweep(HERE / f"{name}-femnist{ending}.toml", reduced=True) for name in ("fig5", "fig6"))
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(given.seconds)
    try:
        first = [*fig5.jobs, *without_noise(fig5.jobs[0], NOISELESS[given.model])]
        run(fig5, with_seeds(first, SEEDS[:1]))
        best = best_step_sizes(finished(given.out / fig5.name), BEST)
        good = [job for job in first if job.setting.training.lr in best[job.label, _target(job)]]
        run(fig5, with_seeds(good, SEEDS[1:]))
        best = best_step_sizes(finished(given.out / fig5.name), 1)
        labels = {job.label for job in fig5.jobs}
        more = {(job.label, _target(job)): job for job in fig6.jobs if job.label not in labels}
        like_one_bit = [
            replace(job, setting=_with_lr(job.setting, best[ONE_BIT, target][0])) for (_, target), job in more.items()
        ]
        run(fig6, with_seeds(like_one_bit, SEEDS))
    except OutOfTime:
        print(f"Stopped after {given.seconds} s: what is finished is kept, and the same call continues.")
    finally:
        signal.alarm(0)
        _share(given.out / fig5.name, given.out / fig6.name, {job.label for job in fig6.jobs})


def _target(job: Job) -> float:
    return float(job.setting.plan.epsilon or 0)


def _with_lr(setting: Setting, lr: float) -> Setting:
    return replace(setting, training=replace(setting.training, lr=lr))


def _share(source: Path, folder: Path, labels: set[str]) -> None:
    """Copy what both figures show from the first to the second."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {line["job"] for line in finished(folder)}
    for line in finished(source):
        if line["label"] in labels and line["job"] not in there:
            append_line(folder / RESULTS, json.loads(json.dumps({**line, "sweep": folder.name})))


if __name__ == "__main__":
    main()
