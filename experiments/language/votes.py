"""Votes against gradients: one round of VOTERS clients, at equal epsilon and in equal bytes.

Idea     a voter has the loss of its text under each of m candidates, and sends its preferences as
         one vector of length 1: losses below their mean (scores), or a one at the best candidate
         (votes). The server takes the candidate with the largest mean. Or the same clients send a
         gradient once, whole or as k coordinates of public directions, and the server takes one
         step whose size is chosen on `choose`. All are 80 bytes of `vmvu`. Candidates are adapters
         trained on one kind of public text each, and prompts, put before the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from text import LANGUAGES, MANUALS, Rows
from training import Setting, Task, mean_of, train

VOTERS = 265
REPEATS = 200
STEPS = 8
EPSILONS = (1.0, 4.0, 8.0)


def vote(run: Any, say: Callable[[str], None]) -> None:
    """Compare a round of votes with a round of gradients."""
    if run.has("votes") or run.over:
        return
    began = time.monotonic()
    task = run.task("bias")
    order = torch.randperm(run.texts.clients.count, generator=torch.Generator().manual_seed(5))[
        :VOTERS
    ]
    voters = run.texts.clients.at(order.to(task.network.device))
    result: dict[str, Any] = {"name": "votes", "voters": voters.count}
    result["zero-shot"] = task.loss(run.texts.test, task.zero())
    adapters = candidates(task)
    names = list(adapters)
    losses = torch.stack([authors(task, voters, point) for point in adapters.values()], dim=1)
    tests = [task.loss(run.texts.test, point) for point in adapters.values()]
    result["adapters"] = {"names": names, "test": tests, **elected(task, losses, tests)}
    say(
        f"adapters: {dict(zip(names, np.round(tests, 3).tolist(), strict=True))} {result['adapters']['elected']}"
    )
    with np.load(run.given.data / "prompts.npz") as file:
        prompts = [file[name].astype(np.int64) for name in sorted(file.files)]
    columns = [prompted(task, voters, prompt) for prompt in prompts]
    tests = []
    for prompt in prompts:
        sums, counts = prompted_sums(task, run.texts.test, prompt)
        tests.append(float(sums.sum() / counts.sum()))
    result["prompts"] = {"test": tests, **elected(task, torch.stack(columns, dim=1), tests)}
    say(f"prompts: best {min(tests):.3f} {result['prompts']['elected']}")
    result["gradients"] = {}
    for epsilon in EPSILONS:
        for source, k in (("", 0), ("man", 16), ("man", 64)):
            setting = Setting("vmvu", epsilon, source, k, cohort=VOTERS)
            basis = run.basis("bias", "zero", setting)
            result["gradients"][f"{epsilon:g} {source}-{k}"] = one_round(
                run, task, setting, voters, basis
            )
    for name, loss in result["gradients"].items():
        say(f"one round of gradients {name}: {loss}")
    result["seconds"] = time.monotonic() - began
    run.add(result)


def candidates(task: Task) -> dict[str, Any]:
    """Return adapters that a few steps on one kind of public text gave, and none at all."""
    points = {"none": task.zero()}
    for kind in MANUALS + LANGUAGES:
        point = task.zero()
        speed = torch.zeros_like(point)
        group = task.texts.public[kind]
        for number in range(STEPS):
            rows = task.gradients(
                group.at(torch.arange(min(48, group.count), device=point.device)), point
            )
            rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=task.clip)
            speed = 0.5 * speed + rows.mean(dim=0)
            point = point - 4.0 * (1 - 0.9 * number / STEPS) * speed
        points[kind] = point
    english = torch.stack([points[kind] for kind in MANUALS]).mean(dim=0)
    points["english"] = english
    points["half of english"] = 0.5 * english
    return points


def authors(task: Task, rows: Rows, point: Any) -> Any:
    """Return each author's loss in nats per token."""
    sums, counts = task.network.author_losses(rows.ids, rows.lengths, task.kind, point)
    return sums / counts.clamp(min=1)


def prompted_sums(task: Task, rows: Rows, prompt: np.ndarray) -> tuple[Any, Any]:
    """Return sums of losses of texts after a prompt, of the same tokens that count without one."""
    head = torch.from_numpy(prompt).to(rows.ids.device).expand(rows.count, -1)
    ids = torch.cat((head, rows.ids), dim=1)
    return task.network.author_losses(
        ids, rows.lengths + prompt.size, task.kind, task.zero(), prompt.size
    )


def prompted(task: Task, rows: Rows, prompt: np.ndarray) -> Any:
    """Return each author's loss after a prompt."""
    sums, counts = prompted_sums(task, rows, prompt)
    return sums / counts.clamp(min=1)


def elected(task: Task, losses: Any, tests: list[float]) -> dict[str, Any]:
    """Return the expected test loss of the candidate that wins, by kind of vote and epsilon, over REPEATS draws."""
    count = losses.shape[1]
    wide = 16 if count <= 16 else 32
    scores = losses.mean(dim=1, keepdim=True) - losses
    kinds = {"scores": scores / scores.norm(dim=1, keepdim=True).clamp(min=1e-9)}
    kinds["votes"] = torch.nn.functional.one_hot(losses.argmin(dim=1), count).float()
    values = np.array(tests)
    generator = torch.Generator(losses.device).manual_seed(3)
    means: dict[str, Any] = {}
    for kind, rows in kinds.items():
        padded = torch.zeros((rows.shape[0], wide), device=rows.device)
        padded[:, :count] = rows
        means[f"{kind} exact"] = float(values[int(rows.mean(dim=0).argmax())])
        for epsilon in EPSILONS:
            mean = mean_of(task, "vmvu", epsilon, wide, rows.shape[0])
            winners = [int(mean(padded, generator)[:count].argmax()) for _ in range(REPEATS)]
            means[f"{kind} {epsilon:g}"] = round(float(values[winners].mean()), 4)
    return {"elected": means, "best": float(values.min())}


def one_round(run: Any, task: Task, setting: Setting, voters: Rows, basis: Any) -> dict[str, Any]:
    """Return the test loss after one private step, for three seeds.

    Its size is chosen on `choose`.
    """
    tries = {}
    for rate in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        point = train(task, setting, task.zero(), rate, 1, clients=voters, basis=basis)
        tries[rate] = task.loss(run.texts.choose, point)
    best = min(tries, key=lambda rate: tries[rate])
    tests = []
    for seed in (1, 2, 3):
        point = train(task, setting, task.zero(), best, seed, clients=voters, basis=basis)
        tests.append(round(task.loss(run.texts.test, point), 4))
    return {"rate": best, "test": tests}
