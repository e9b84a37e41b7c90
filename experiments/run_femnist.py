r"""Figures 5 and 6 with the network.

Steps chosen on held-out writers, the chosen ones repeated with five seeds.

Idea     1. For every mechanism and epsilon of `fig5-femnist.toml` and `fig6-femnist.toml`, reduced,
         a tenth of the training writers is held out: the others train, under a seed of their own,
         with a step that goes with the noise; then, again and again, with half and twice the best
         step so far, until both are known. The best on the held-out writers is chosen.
         2. The chosen step with all training writers, seeds 1 to 5, scored on the test writers at
            the end. Figure 6 comes first, then what else is in Figure 5, then what else there is at
            epsilon 1. I-MVU of b > 1 bits has MVU's design of 2^b levels, with the largest beta
            that the epsilon allows. Its steps are those of one bit and half of them, as Skellam's
            are the Gaussian's: their noise is much the same.

    PYTHONPATH=src python experiments/run_femnist.py --data data --out runs/femnist --device cuda
    --minutes 9

    python experiments/run_femnist.py --out runs/femnist --back femnist.jsonl.gz --keep
    experiments/results

Needed are numpy, scipy and torch alone. All runs of a seed are trained side by side
(`quietbit_lab.task.batch`). A call continues where an earlier one was stopped; `--back` is one file
with all results, all that has to travel: where it is there already, its results are not run again,
nor those of other files named after it. `--keep` makes of them what tables and figures are drawn
from. `--epsilon`, `--labels`, `--seeds` and `--rounds` cut the experiment down, to try it or to
share it among processes; lines that lead others (one bit, Gaussian) must be in the same process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from quietbit._search import bisect
from quietbit.federation.simulate.participation import releases_per_client
from quietbit_lab.experiment.grid import Job, Sweep, read_sweep
from quietbit_lab.experiment.packed import pack, read_results, unpack
from quietbit_lab.experiment.record import Setting
from quietbit_lab.experiment.sweep import finished
from quietbit_lab.schedule import ScheduledPlan
from quietbit_lab.task.batch_sweep import BatchTogether, run_batches
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.images import load_femnist
from quietbit_lab.task.module import ModuleProblem, femnist_network

HERE = Path(__file__).parent
BEGAN = time.monotonic()
CHOOSING, HELD_OUT = 101, 10  # the seed that chooses; one writer in so many is held out
BACK_EVERY = 5.0  # seconds between writings of the one file
MOST_STEPS = 9  # tried for one mechanism and epsilon
CHOICE, FIG5, FIG6 = FOLDERS = ("femnist-choice", "fig5-femnist", "fig6-femnist")
ONE_BIT, GAUSSIAN, SKELLAM, NOISELESS = (
    "I-MVU, 1 bit",
    "Gaussian, 32 bits",
    "Skellam, 16 bits",
    "without noise",
)
SHARED = (ONE_BIT, GAUSSIAN)  # lines of both figures
START = {
    1.0: 0.005,
    3.0: 0.01,
    8.0: 0.02,
    20.0: 0.04,
    0.0: 0.16,
}  # the step to begin with, by epsilon; 0: no noise
DESIGNS = {
    1.0: 0.2,
    3.0: 0.5,
    8.0: 1.0,
    20.0: 2.0,
}  # of several levels: inputs are cut at about 1/50 of the clip
BETAS = 4.0, 400.0
ALIKE = ("cohort", "clip", "samples", "participation", "rng", "adjacency")
Cell = tuple[str, float]  # label and epsilon


class OutOfTime(Exception):
    """The time that was given is over."""


@dataclass
class Stage:
    """Runs jobs until the clock stops them, and knows what came of them."""

    out: Path
    back: Path | None
    together: BatchTogether
    until: float | None

    def run(self, name: str, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """All results of a folder, once those of these jobs are among them."""
        left = None if self.until is None else max(1e-9, self.until - time.monotonic()) / 60
        say(f"{name}: {len(jobs)} trainings asked for")
        sweep, last = Sweep(name, "", tuple(jobs)), time.monotonic()

        def told(done: int, count: int, result: dict[str, Any]) -> None:
            nonlocal last
            if time.monotonic() - last > BACK_EVERY:
                self.bring_back()
                last = time.monotonic()

        run_batches(
            sweep, self.out / name, self.together, resume=True, minutes=left, on_result=told
        )
        self.bring_back()
        found = finished(self.out / name)
        if not {job.identity for job in jobs} <= {line["job"] for line in found}:
            raise OutOfTime
        return found

    def bring_back(self) -> None:
        """Everything so far in one file."""
        if self.back is not None:
            pack([line for folder in FOLDERS for line in finished(self.out / folder)], self.back)

    def ready(self, job: Job) -> Job:
        """Return the job with its design's beta, if that has several levels.

        Beta depends on seed and writers.
        """
        plan, rounds = job.setting.plan, job.setting.training.rounds
        if plan.mechanism.levels is None:
            return job
        problem = self.together.problem(job)
        counts = releases_per_client(plan.schedule(problem.sizes.size), rounds)

        def allowed(beta: float) -> bool:
            chosen = attrs.evolve(plan, mechanism=attrs.evolve(plan.mechanism, beta=beta))
            account = chosen.account(
                chosen.mechanism_for(problem.dimension, problem.sizes), problem.sizes
            )
            account.counts = counts
            return account.worst(plan.delta).epsilon_upper <= budget(job)

        beta = float(f"{bisect(allowed, *BETAS, relative=1e-3, by_ratio=True) * (1 - 1e-4):.5g}")
        return with_plan(job, mechanism=attrs.evolve(plan.mechanism, beta=beta))


def main() -> None:
    """Choose and report, as far as time allows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="folder that holds femnist/"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="where results go, a folder for each figure"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, help="stop after so long; the same call continues")
    parser.add_argument("--epsilon", type=float, nargs="*", help="only these")
    parser.add_argument("--labels", nargs="*", help="only lines whose label begins so")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rounds", type=int, help="fewer than the files say, to try it")
    parser.add_argument(
        "--back", type=Path, nargs="*", default=[], help="files with results; the first is written"
    )
    parser.add_argument(
        "--keep", type=Path, help="only make the small files of tables and figures, in this folder"
    )
    given = parser.parse_args()
    known = [line for path in given.back if path.exists() for line in read_results(path)]
    for name in FOLDERS:
        unpack([line for line in known if line["sweep"] == name], given.out / name)
    if given.keep is not None:
        keep(given.out, given.keep)
        return
    together = BatchTogether(given.device, Problems(given.data, given.device), note=say)
    until = None if given.minutes is None else BEGAN + 60 * given.minutes
    stage = Stage(given.out, given.back[0] if given.back else None, together, until)
    chosen: dict[Cell, float] = {}
    try:
        for group in groups(given.epsilon, given.labels, given.rounds):
            choose(stage, [job for job, _ in group], chosen)
            for name in (FIG5, FIG6):
                asked = reported(
                    [job for job, folder in group if folder == name], chosen, given.seeds
                )
                if asked:
                    stage.run(name, [stage.ready(job) for job in asked])
    except OutOfTime:
        say("Out of time: what is finished is kept, and the same call continues.")


def groups(
    budgets: Sequence[float] | None, labels: Sequence[str] | None, rounds: int | None
) -> Iterator[list[tuple[Job, str]]]:
    """Jobs and their folders, the most important first.

    Those of one group are chosen, and reported, together.
    """
    fig5 = [(job, FIG5) for job in jobs_of(FIG5, rounds)]
    both = [pair for pair in fig5 if pair[0].label in SHARED]
    others = [pair for pair in fig5 if pair[0].label not in SHARED]
    levels = [(of_levels(job), FIG6) for job in jobs_of(FIG6, rounds) if job.label not in SHARED]
    public = [(without_noise(fig5[0][0]), FIG5)]
    low = min(budget(job) for job, _ in fig5)
    for group in (
        [pair for pair in both + levels if budget(pair[0]) > low],
        [pair for pair in others if budget(pair[0]) > low],
        public,
        [pair for pair in fig5 if budget(pair[0]) == low],
    ):
        asked = [pair for pair in group if not labels or pair[0].label.startswith(tuple(labels))]
        asked = [pair for pair in asked if not budgets or budget(pair[0]) in (*budgets, 0.0)]
        if asked:
            yield asked


def jobs_of(name: str, rounds: int | None) -> list[Job]:
    """Return the reduced jobs of a file, scored at the end alone, with the step that goes with their noise."""
    found = []
    for job in read_sweep(HERE / f"{name}.toml", reduced=True).jobs:
        last = min(job.setting.training.rounds, rounds or job.setting.training.rounds)
        training = replace(job.setting.training, rounds=last, evaluate_at=())
        start = START[budget(job)] / START[8.0] * training.lr
        found.append(
            with_step(replace(job, setting=replace(job.setting, training=training)), start)
        )
    return found


def of_levels(job: Job) -> Job:
    """Return a job of several bits with MVU's design of as many levels.

    `Stage.ready` finds its beta.
    """
    levels = 2 ** (job.setting.plan.mechanism.bits or 1)
    mechanism = attrs.evolve(
        job.setting.plan.mechanism, levels=levels, design_epsilon=DESIGNS[budget(job)]
    )
    made = with_plan(job, mechanism=mechanism)
    return replace(made, label=f"{job.label}, {levels} levels")


def without_noise(job: Job) -> Job:
    """Return the same training without noise, with steps of its own.

    The reference for all others.
    """
    plan = ScheduledPlan("none", **{name: getattr(job.setting.plan, name) for name in ALIKE})
    plain = replace(job, setting=Setting(plan, job.setting.training), label=NOISELESS)
    return with_step(plain, START[0.0])


def choose(stage: Stage, jobs: Sequence[Job], chosen: dict[Cell, float]) -> None:
    """Add the best step of every cell on the held-out writers.

    The given step, then half and twice the best until both are known; where a line leads, its step
    and half of it.
    """
    known = {job.label for job in jobs} | {label for label, _ in chosen}
    leads = [job for job in jobs if leader(job) == job.label or leader(job) not in known]
    asked = {job.identity: job for job in (stage.ready(on_held_out(job)) for job in leads)}
    while asked:
        tried = scores(stage, asked)
        more = [
            with_step(job, step)
            for job in one_each(asked.values())
            for step in beside(tried[cell(job)])
        ]
        if not more:
            chosen |= {key: best(steps) for key, steps in tried.items()}
            break
        asked |= {job.identity: job for job in more}
    following = [stage.ready(on_held_out(job)) for job in jobs if cell(job) not in chosen]
    steps = [
        with_step(job, chosen[leader(job), budget(job)] * part)
        for job in following
        for part in (0.5, 1)
    ]
    if steps:
        tried = scores(stage, {job.identity: job for job in steps})
        chosen |= {key: best(steps) for key, steps in tried.items()}


def leader(job: Job) -> str:
    """Return the line whose steps a job begins with: its own, unless it is much like another."""
    if job.setting.plan.mechanism.levels is not None:
        return ONE_BIT
    return GAUSSIAN if job.label == SKELLAM else job.label


def scores(stage: Stage, asked: Mapping[str, Job]) -> dict[Cell, dict[float, float]]:
    """Accuracies of these jobs on the held-out writers, by cell and step."""
    tried: dict[Cell, dict[float, float]] = {}
    for line in stage.run(CHOICE, list(asked.values())):
        if line["job"] in asked:
            record = line["record"]
            accuracy = record["points"][-1]["accuracy"] if record["status"] == "finished" else 0.0
            tried.setdefault(cell(asked[line["job"]]), {})[record["settings"]["lr"]] = accuracy
    return tried


def beside(tried: Mapping[float, float]) -> list[float]:
    """Half and twice the best step, where they were not tried."""
    if len(tried) >= MOST_STEPS:
        return []
    return [step for step in (best(tried) / 2, best(tried) * 2) if step not in tried]


def best(tried: Mapping[float, float]) -> float:
    """Return the step of the highest accuracy, the smaller one of two."""
    return min(tried, key=lambda step: (-tried[step], step))


def on_held_out(job: Job) -> Job:
    """Return the job with fewer writers, as many releases of each, and a seed of its own."""
    training = job.setting.training
    rounds = max(1, training.rounds * (HELD_OUT - 1) // HELD_OUT)
    setting = replace(job.setting, training=replace(training, rounds=rounds)).with_seed(CHOOSING)
    return replace(job, setting=setting, task={**job.task, "held_out": HELD_OUT})


def reported(jobs: Iterable[Job], chosen: Mapping[Cell, float], seeds: Sequence[int]) -> list[Job]:
    """Every cell at its chosen step, under every seed."""
    cells = [with_step(job, chosen[cell(job)]) for job in one_each(jobs)]
    return [replace(job, setting=job.setting.with_seed(seed)) for seed in seeds for job in cells]


def one_each(jobs: Iterable[Job]) -> list[Job]:
    """Return the first job of every cell."""
    found: dict[Cell, Job] = {}
    for job in jobs:
        found.setdefault(cell(job), job)
    return list(found.values())


def cell(job: Job) -> Cell:
    """Jobs that differ by step and seed alone share it."""
    return job.label, budget(job)


def budget(job: Job) -> float:
    """Return the epsilon that a job may spend; 0 without noise."""
    return float(job.setting.plan.epsilon or 0)


def with_step(job: Job, step: float) -> Job:
    """Return the same job with another step."""
    return replace(
        job, setting=replace(job.setting, training=replace(job.setting.training, lr=step))
    )


def with_plan(job: Job, **changes: Any) -> Job:
    """Return the same job with another plan."""
    return replace(
        job, setting=replace(job.setting, plan=attrs.evolve(job.setting.plan, **changes))
    )


class Problems:
    """Makes the problem of a task; a task may hold out writers, who then take the place of the test writers."""

    def __init__(self, data: Path, device: str) -> None:
        self.data, self.device = data, device

    def __call__(self, task: Mapping[str, Any], seed: int) -> ModuleProblem:
        """Return the problem of training the network on FEMNIST."""
        least = int(task["least"])
        dataset = load_femnist(self.data, least)
        if "held_out" in task:
            dataset = held_out(dataset, int(task["held_out"]))
        partition = Partition.by_owner(owners(dataset), least)
        problem = ModuleProblem(dataset, partition, femnist_network, device=self.device)
        say(
            f"{problem.sizes.size} writers train on {dataset.train.count:,} images, {dataset.test.count:,} are scored"
        )
        return problem


def held_out(dataset: Dataset, one_in: int) -> Dataset:
    """One training writer in so many scores, drawn once and for all; nobody else is looked at."""
    writers = np.unique(owners(dataset))
    scoring = np.random.default_rng(1).permutation(writers)[: -(-writers.size // one_in)]
    apart = np.isin(owners(dataset), scoring)
    train, test = (
        Examples(dataset.train.inputs[half], dataset.train.labels[half]) for half in (~apart, apart)
    )
    return Dataset(dataset.name, dataset.classes, train, test, owners(dataset)[~apart])


def owners(dataset: Dataset) -> NDArray[np.int64]:
    """Whose each training image is."""
    if dataset.writers is None:
        raise ValueError("the writers of these images are not known")
    return dataset.writers


def keep(out: Path, folder: Path) -> None:
    """Pack the results that tables and figures are drawn from.

    Figure 6 shows two lines of Figure 5 as well.
    """
    choice, fig5, fig6 = (finished(out / name) for name in FOLDERS)
    # found for each seed's writers from the epsilon, as the others' noise is: no setting of its own
    for line in fig6:
        record = line["record"]
        record["settings"]["beta"] = None
        line["job"] = Job(
            Setting.from_json(record["settings"]), record["task"], line["label"]
        ).identity
    fig6 += [{**line, "sweep": FIG6} for line in fig5 if line["label"] in SHARED]
    for name, results in zip(FOLDERS, (choice, fig5, fig6), strict=True):
        pack(results, folder / f"{name}.jsonl.gz")


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
