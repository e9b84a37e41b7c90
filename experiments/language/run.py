"""Run the lines of the language experiments on a GPU, in an order of importance, until the time is up.

    python experiments/language/run.py --data DIR --weights DIR --mechanisms FILE --out DIR --jobs
    public lines:main

Idea     a line is a setting; its step is found by doubling and halving on the authors of `choose`,
         with seed 1, and seeds 2 and 3 are then trained with that step. Test authors are looked at
         once, after that. What is in the file of results already is not run again, and public
         starting points are read from beside it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lines import LINES, Line
from memory import remember
from network import Network
from text import Rows, read_texts
from training import Setting, Task, train, train_public
from votes import vote

BEGAN = time.monotonic()
SEEDS = (1, 2, 3)
MOST_TRIES = 4
MOST_PUBLIC_TRIES = 7
FIRST = 4.0  # the step that a search for biases begins with where noise is small
OTHER_FIRST = 1.0  # the same for other kinds, before their line without privacy is known


class Run:
    """Tasks, results and starting points of one program."""

    def __init__(self, given: argparse.Namespace) -> None:
        """Read everything once."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.given = given
        self.network = Network(given.weights, device)
        self.texts = read_texts(given.data, device, given.length, given.most)
        with given.mechanisms.open("rb") as file:
            self.mechanisms = pickle.load(file)  # noqa: S301 - made by calibrate.py
        self.tasks: dict[str, Task] = {}
        self.path = given.out / "results.json"
        known = given.known / "results.json" if given.known else self.path
        self.results: list[dict[str, Any]] = json.loads(known.read_text()) if known.exists() else []
        self.points: dict[str, Any] = {}
        kept = known.parent / "points.npz"
        if kept.exists():
            with np.load(kept) as file:
                self.points = {name: torch.from_numpy(file[name]).to(device) for name in file.files}
        self.bases: dict[Any, Any] = {}

    def task(self, kind: str) -> Task:
        """Return the task that trains a kind of numbers."""
        if kind not in self.tasks:
            task = Task(self.network, self.texts, kind, self.mechanisms)
            scored = f"{kind} zero-shot"
            if self.has(scored):  # the clip of earlier lines, whatever this machine's manuals are
                task.cache["clip"] = self.result(scored)["clip"]
            self.tasks[kind] = task
        return self.tasks[kind]

    def start(self, kind: str, name: str) -> Any:
        """Return a starting point: of zeros, or what public text taught."""
        return self.task(kind).zero() if name == "zero" else self.points[f"{kind}-{name}-1"]

    def basis(self, kind: str, start: str, setting: Setting) -> Any:
        """Return the directions at a starting point."""
        if not setting.k:
            return None
        key = (kind, start, setting.source, setting.k)
        if key not in self.bases:
            self.bases[key] = self.task(kind).basis(
                setting.source, setting.k, self.start(kind, start)
            )
        return self.bases[key]

    def has(self, name: str) -> bool:
        """Return whether a result is known."""
        return any(result["name"] == name for result in self.results)

    def result(self, name: str) -> dict[str, Any]:
        """Return a known result."""
        return next(result for result in self.results if result["name"] == name)

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result and write the file."""
        self.results.append(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.results))

    def save_points(self) -> None:
        """Write what later programs start from."""
        np.savez(
            self.path.parent / "points.npz",
            **{name: point.cpu().numpy() for name, point in self.points.items()},
        )

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() - BEGAN > 60 * self.given.minutes


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:6.1f} s  {words}", flush=True)


def zero_shot(run: Run, kind: str) -> None:
    """Score the pre-trained model."""
    name = f"{kind} zero-shot"
    if run.has(name):
        return
    task = run.task(kind)
    point = task.zero()
    result = {"name": name, "kind": kind, "choose": [task.loss(run.texts.choose, point)]}
    result["test"] = [task.loss(run.texts.test, point)]
    result["authors"] = [task.by_author(run.texts.test, point)]
    result["clip"] = task.clip
    run.add(result)
    say(
        f"{name}: choose {result['choose'][0]:.3f} test {result['test'][0]:.3f} clip {task.clip:.3f}"
    )


def public(run: Run, kind: str, name: str, group: Rows) -> None:
    """Train on public text alone: the step and the moment chosen on `choose`, three seeds reported."""
    label = f"{kind} public {name}"
    if run.has(label) or run.over:
        return
    task = run.task(kind)
    tries: dict[tuple[float, int], float] = {}
    points = {}
    for steps in (20, 60):
        rate: float | None = 8.0 if kind == "bias" else OTHER_FIRST
        while rate is not None and not (run.over and tries):
            point, _, loss = train_public(task, group, rate, steps, 5, SEEDS[0])
            if loss < min(tries.values(), default=float("inf")):
                points[SEEDS[0]] = point
            tries[rate, steps] = loss
            rate = next_rate({known: tries[known, s] for known, s in tries if s == steps})
    best_rate, steps = min(tries, key=lambda key: tries[key])
    for seed in SEEDS[1:]:
        points[seed], _, _ = train_public(task, group, best_rate, steps, 5, seed)
    shown = {f"{known:g} in {count}": loss for (known, count), loss in tries.items()}
    result = {"name": label, "kind": kind, "tries": shown, "rate": best_rate, "steps": steps}
    report(run, result, task, [points[seed] for seed in SEEDS])
    run.points[f"{kind}-{name}-1"] = points[SEEDS[0]]
    run.save_points()


def next_rate(losses: dict[float, float]) -> float | None:
    """Return the next step size to try, doubling or halving.

    None when both sides of the best are known.
    """
    best = min(losses, key=lambda rate: (losses[rate], rate))
    if len(losses) == MOST_PUBLIC_TRIES:
        return None
    for rate in (best / 2, best * 2):
        if rate not in losses:
            return rate
    return None


def report(run: Run, result: dict[str, Any], task: Task, points: list[Any]) -> None:
    """Look at the test authors, and keep the result."""
    result["choose"] = [task.loss(run.texts.choose, point) for point in points]
    result["test"] = [task.loss(run.texts.test, point) for point in points]
    result["authors"] = [task.by_author(run.texts.test, point) for point in points]
    run.add(result)
    tests = " ".join(f"{loss:.3f}" for loss in result["test"])
    say(
        f"{result['name']}: rate {result.get('rate')} choose {result['choose'][0]:.3f} test {tests}"
    )


def noise_length(run: Run, line: Line) -> float:
    """Return the expected length of a round's noise, in clips."""
    setting = line.setting
    dimension = setting.k or run.task(line.kind).dimension
    if setting.mechanism == "none":
        return 0.0
    key = "vmvu" if setting.mechanism in ("vmvu", "payloads") else "gaussian"
    squared = run.mechanisms[key, dimension, setting.epsilon][2] * setting.noise**2
    trusted = setting.mechanism in ("sum", "central")
    return float((dimension * squared / setting.cohort / (setting.cohort if trusted else 1)) ** 0.5)


def first_rate(run: Run, line: Line) -> float:
    """Return a step to begin the search with, a power of two."""
    loud = noise_length(run, line)
    quiet = FIRST
    if line.kind != "bias":
        free = f"{line.kind} zero none"
        quiet = run.result(free)["rate"] / 2 if run.has(free) else OTHER_FIRST
    rate = quiet
    while rate * max(loud, 1.0) > quiet:
        rate /= 2
    return rate


def train_line(run: Run, line: Line) -> None:
    """Find the step on `choose`, train three seeds, and report."""
    if run.has(line.name) or run.over:
        return
    if line.start != "zero" and f"{line.kind}-{line.start}-1" not in run.points:
        say(f"{line.name}: no starting point")
        return
    began = time.monotonic()
    task = run.task(line.kind)
    start = run.start(line.kind, line.start)
    basis = run.basis(line.kind, line.start, line.setting)
    tries: dict[float, tuple[float, Any]] = {}

    def attempt(rate: float) -> float:
        if rate not in tries:
            point = train(task, line.setting, start, rate, SEEDS[0], basis=basis)
            loss = task.loss(run.texts.choose, point)
            tries[rate] = (loss if loss == loss else float("inf"), point)
        return tries[rate][0]

    if line.setting.mechanism == "payloads":  # the step that the law found
        attempt(run.result(line.name.replace("payloads", "vmvu"))["rate"])
    else:
        attempt(line.rate or first_rate(run, line))
        factors = (2.0, 0.5) if line.start == "zero" else (0.5, 2.0)
        most = MOST_TRIES
        if line.kind != "bias" and line.setting.mechanism == "none":
            most = MOST_PUBLIC_TRIES
        while len(tries) < most:
            best = min(tries, key=lambda value: tries[value][0])
            new = [best * factor for factor in factors if best * factor not in tries]
            if not new:
                break
            attempt(new[0])
    best = min(tries, key=lambda value: tries[value][0])
    points = [tries[best][1]]
    seeds = SEEDS if line.seeds is None else SEEDS[: line.seeds]
    for seed in seeds[1:]:
        points.append(train(task, line.setting, start, best, seed, basis=basis))
    edge = best in (min(tries), max(tries))
    result = {"name": line.name, "kind": line.kind, "start": line.start, "rate": best, "edge": edge}
    result["tries"] = {f"{value:g}": tries[value][0] for value in sorted(tries)}
    result["noise"] = noise_length(run, line)
    result["seconds"] = time.monotonic() - began
    report(run, result, task, points)
    run.points[line.name.replace(" ", "_")] = points[0]


def samples(run: Run) -> None:
    """Continue the first tokens of ten test authors, drawn by a fixed seed, before and after training."""
    run.results = [result for result in run.results if result["name"] != "samples"]
    task = run.task("bias")
    chosen = np.random.default_rng(10).permutation(run.texts.test.count)[:10]
    prompts = run.texts.test.ids[torch.from_numpy(chosen).to(task.network.device), :12]
    result: dict[str, Any] = {
        "name": "samples",
        "authors": chosen.tolist(),
        "prompts": prompts.tolist(),
        "after": {},
    }
    models = {"zero-shot": task.zero()}
    models |= {name: point for name, point in run.points.items() if point.numel() == task.dimension}
    for name, point in models.items():
        found = task.network.generate(prompts, "bias", point, 40, 1)
        result["after"][name] = found.tolist()
    run.add(result)
    say(f"samples of {len(models)} models")


def do(run: Run, job: str) -> None:
    """Do one job; ``lines:GROUP`` runs a group of lines."""
    if job.startswith("lines:"):
        for line in LINES:
            if line.group == job.removeprefix("lines:"):
                train_line(run, line)
    elif job == "named":
        named = {line.name: line for line in LINES}
        for name in run.given.names.read_text().splitlines():
            train_line(run, named[name])
    elif job.startswith("public:"):
        _, kind, name = job.split(":")
        zero_shot(run, kind)
        public(run, kind, name, getattr(run.texts, name))
    elif job == "public":
        zero_shot(run, "bias")
        public(run, "bias", "volunteers", run.texts.volunteers)
        public(run, "bias", "manuals", run.texts.manuals)
        public(run, "bias", "languages", run.texts.languages)
    elif job == "memory":
        remember(run, say)
    elif job == "votes":
        vote(run, say)
    elif job == "samples":
        samples(run)


def main() -> None:
    """Run the jobs in order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--mechanisms", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--known", type=Path, help="folder with results of an earlier program")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument(
        "--jobs", nargs="*", default=["public", "lines:main", "votes", "memory", "samples"]
    )
    parser.add_argument(
        "--names", type=Path, help="lines to run, in this order, for the job `named`"
    )
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--most", type=int, default=None, help="texts of a group, for a trial")
    given = parser.parse_args()
    run = Run(given)
    say(
        f"clients {run.texts.clients.count}, volunteers {run.texts.volunteers.count}, test {run.texts.test.count}"
    )
    for job in given.jobs:
        try:
            do(run, job)
        except (KeyError, RuntimeError, ValueError, TypeError, IndexError):  # the next job may do
            traceback.print_exc()
        run.save_points()
    say("done" if not run.over else "time is up")


if __name__ == "__main__":
    main()
