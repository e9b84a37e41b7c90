r"""A clip that is wrong by a factor of ten, fixed and moving: what it costs in accuracy.

Idea     softmax regression on MNIST's pixels, a client per example, every client once: one-bit I-MVU at epsilon 8
         (delta 1e-5, zero-out, local trust), the bits of the moving clip included. One seed chooses clip and step of
         the fixed clip, and step and share of the moving one from that start; other seeds report both, begun there,
         ten times too low and ten times too high, with the same step.

    PYTHONPATH=src QUIETBIT_DATA=data python experiments/adaptive_clip.py --out experiments/results/adaptive-clip.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from quietbit.plan.plan import RoundPlan
from quietbit.simulate import Training
from quietbit_lab.experiment import quick
from quietbit_lab.task.registry import TaskSpec, build_task

CHOOSING, REPORTING = 101, (1, 2, 3)
TASKS = {"mnist": (1000, 60), "digits": (359, 4)}  # cohort and rounds: every client once
CLIPS = (0.5, 2.0, 8.0)
PACES = (0.25, 0.5, 1.0, 2.0)  # step times clip: how far a round of clipped updates moves the model
SHARES = (0.1, 0.3, 0.5)  # of updates that the clip shall leave alone
BEGAN = time.monotonic()


def accuracy(problem: Any, size: tuple[int, int], clip: float, lr: float, seed: int, **moving: Any) -> dict[str, Any]:
    """One run: what it gets right in the end, and where its clip was."""
    plan = RoundPlan(
        "imvu", clip=clip, adjacency="zero-out", epsilon=8.0, cohort=size[0], rng="seeded", seed=seed, **moving
    )
    run = quick.train(problem, plan, Training(lr, size[1]))
    found = run.points[-1].score.accuracy if run.status == "finished" else 0.0
    facts = {
        "clip": clip,
        "lr": lr,
        "seed": seed,
        **moving,
        "accuracy": found,
        "clips": run.clips[:: max(1, size[1] // 12)],
    }
    print(f"{time.monotonic() - BEGAN:6.0f} s {facts}", flush=True)
    return facts


def main() -> None:
    """Choose, report, and write after every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist", choices=TASKS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    problem: Any = build_task(TaskSpec(given.task, "linear"), data=given.data, seed=0)
    size = TASKS[given.task]

    def best(clips: Any, **choice: Any) -> dict[str, Any]:
        tried = [accuracy(problem, size, clip, pace / clip, CHOOSING, **choice) for clip in clips for pace in PACES]
        return max(tried, key=lambda one: one["accuracy"])

    fixed = best(CLIPS)
    tried = [best([fixed["clip"]], clip_quantile=share) for share in SHARES]
    follows = max(tried, key=lambda one: one["accuracy"])
    moving = {"clip_quantile": follows["clip_quantile"]}
    lines = []
    for label, chosen, choice in (("fixed", fixed, {}), ("moving", follows, moving)):
        for factor in (1.0, 0.1, 10.0):
            runs = [accuracy(problem, size, factor * fixed["clip"], chosen["lr"], seed, **choice) for seed in REPORTING]
            found = [100 * one["accuracy"] for one in runs]
            lines.append(
                {
                    "clip": label, "factor": factor, "lr": chosen["lr"], "mean": statistics.mean(found),
                    "deviation": statistics.stdev(found), "runs": runs,
                }
            )  # fmt: skip
            print(label, factor, f"{lines[-1]['mean']:.1f} +- {lines[-1]['deviation']:.1f}", flush=True)
            given.out.write_text(
                json.dumps({"task": given.task, "fixed": fixed, "moving": follows, "lines": lines}) + "\n"
            )


if __name__ == "__main__":
    main()
