r"""A clip that is wrong by a factor of ten, fixed and moving: what it costs in accuracy.

Idea     the linear models of `few_releases.py`, a client per example, every client once per epoch, one-bit I-MVU at one
         budget, the bits of the moving clip included. Four seeds choose clip and step of the fixed clip, and step and
         share of the moving one from the same start; five others report both, begun there, ten times too low and ten
         times too high. Steps are in units of the clip, for both: how far a mean of updates that are all cut moves the
         model.

    PYTHONPATH=src:extra QUIETBIT_DATA=data python experiments/adaptive_clip.py --device cuda \
        --out experiments/results/adaptive-clip.json
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from few_releases import DELTA, MOMENTUM, Linear, mean_of, say

from quietbit import Ball, MovingClip, calibrate
from quietbit.plan.clip import usual_bit_epsilon
from quietbit_lab.task.registry import TaskSpec, build_task

CHOOSING, REPORTING = (101, 102, 103, 104), (1, 2, 3, 4, 5)
CLIPS = (2.0, 8.0, 30.0)
STEPS = (0.004, 0.008, 0.011, 0.016, 0.03)
SHARES = (0.3, 0.5, 0.7)
FACTORS = (1.0, 0.1, 10.0)


class Setting:
    """A task, a budget, and the mechanisms for it, with the bit and without."""

    def __init__(self, model: Linear, epsilon: float, epochs: int, cohort: int) -> None:
        self.model, self.epochs, self.cohort = model, epochs, cohort
        given: Any = {
            "ball": Ball("l2", 1.0, model.dimension), "epsilon": epsilon, "delta": DELTA, "adjacency": "zero-out",
            "releases": epochs,
        }  # fmt: skip
        self.fixed: Any = calibrate("imvu", **given).mechanism
        self.watched: Any = calibrate("imvu", **given, bit_epsilon=usual_bit_epsilon(epsilon, DELTA, epochs)).mechanism

    def train(self, clip: float, step: float, seed: int, share: float | None = None) -> tuple[float, list[float]]:
        """Accuracy in the end, and the clips; the step falls linearly to a tenth. ``share`` makes the clip move."""
        model, device = self.model, self.model.device
        mean = mean_of(self.fixed if share is None else self.watched.inner, "imvu")
        moving = MovingClip.from_start(clip, quantile=share or 0.5)
        generator = torch.Generator(device).manual_seed(seed)
        weights = torch.zeros((model.classes, model.width), device=device)
        speed, clients = torch.zeros_like(weights), model.inputs.shape[0]
        a_round, rounds = clients // self.cohort, self.epochs * (clients // self.cohort)
        order = torch.empty(0, device=device)
        for number in range(rounds):
            place = number % a_round
            if place == 0:
                order = torch.randperm(clients, generator=generator, device=device)
            chosen = order[place * self.cohort : (place + 1) * self.cohort]
            rows = model.updates(weights, chosen, moving.clip)
            speed = MOMENTUM * speed + mean(rows, generator).reshape(weights.shape)
            if share is not None:
                # A row that was cut has length 1; the rest are shorter than the clip.
                inside = rows.norm(dim=1) < 1 - 1e-5
                lies = torch.rand(inside.shape, generator=generator, device=device) < self.watched.lies / 2**64
                moving.move(self.watched.answers(int((inside != lies).sum()), self.cohort))
            weights = weights - step * (1 - 0.9 * number / rounds) * speed
        found = model.accuracy(weights)
        return (found if math.isfinite(found) else 0.0), moving.history[:: max(1, rounds // 10)]

    def tried(self, clip: float, step: float, seeds: tuple[int, ...], share: float | None = None) -> dict[str, Any]:
        """Train one setting with each of these seeds and summarise the runs."""
        runs = [self.train(clip, step, seed, share) for seed in seeds]
        found = 100 * np.array([accuracy for accuracy, _ in runs])
        say(f"clip {clip:g} step {step:g} share {share}: {found.mean():.2f} +- {found.std():.2f}")
        return {
            "clip": clip, "step": step, "share": share, "seeds": seeds, "accuracies": found.tolist(),
            "mean": float(found.mean()), "clips": runs[0][1],
        }  # fmt: skip


def main() -> None:
    """Choose, report, and write after every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--model", default="", help="linear for pixels; the task's own features unless given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epsilon", type=float, default=8.08)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cohort", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model = Linear(build_task(TaskSpec(given.task, given.model), seed=0, device=given.device), given.device)
    setting = Setting(model, given.epsilon, given.epochs, given.cohort)
    say(f"{given.task}: {model.dimension:,} parameters, bits of epsilon {setting.watched.bit_epsilon:.3g}")
    record: dict[str, Any] = {"task": given.task, "epsilon": given.epsilon, "epochs": given.epochs, "lines": []}

    def best(clips: tuple[float, ...], shares: tuple[float | None, ...]) -> dict[str, Any]:
        tried = [setting.tried(clip, step, CHOOSING, share) for clip in clips for share in shares for step in STEPS]
        return max(tried, key=lambda one: float(one["mean"]))

    fixed = best(CLIPS, (None,))
    follows = best((fixed["clip"],), SHARES)
    for chosen in (fixed, follows):
        for factor in FACTORS:
            found = setting.tried(factor * fixed["clip"], chosen["step"], REPORTING, chosen["share"])
            record["lines"].append(found)
            given.out.write_text(json.dumps({**record, "fixed": fixed, "moving": follows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
