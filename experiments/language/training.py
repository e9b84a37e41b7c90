"""Training by federated rounds: clipped gradients, a subspace where there is one, and a mechanism's law on their mean.

Idea     every client takes part once. A round has COHORT clients; the gradient of each is clipped,
         a mechanism makes a noisy mean of them, and the server takes a step with momentum that
         falls to a tenth. With a subspace a client sends the coordinates of its gradient in k
         public directions, clipped at half of the clip. The clip is the median length of public
         gradients (the manuals'), never of clients'. Releases are drawn from the mechanisms' laws
         (`quietbit_lab.cohort`); `payloads` sends real ones instead.
Symbols  d numbers are trained, k directions; lengths are in clips, so that a row has length 1 at
         most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from network import Network
from text import Rows, Texts

from quietbit import Uplink
from quietbit_lab.cohort.means import gaussian_mean, unit_mean
from quietbit_lab.cohort.releases import vector_mean

COHORT = 106
MOMENTUM = 0.5
LAST = 0.1  # of the step, at the end
SUBSPACE_CLIP = 0.5  # of the clip
WIDE = {
    1.0: 1024,
    4.0: 4096,
    8.0: 4096,
}  # coordinates that one-bit sums of few numbers are spread over
Mean = Callable[[Any, Any], Any]


@frozen(eq=False)
class Task:
    """What is trained and on whom, with what is computed once: the clip and bases."""

    network: Network
    texts: Texts
    kind: str
    mechanisms: dict[Any, Any]
    cache: dict[str, Any] = field(factory=dict)

    @property
    def dimension(self) -> int:
        """D."""
        return self.network.dimension(self.kind)

    def zero(self) -> Any:
        """Return the pre-trained model."""
        return torch.zeros(self.dimension, device=self.network.device)

    def gradients(self, rows: Rows, point: Any) -> Any:
        """Return a gradient for each text."""
        return self.network.gradients(rows.ids, rows.lengths, self.kind, point)

    def loss(self, rows: Rows, point: Any) -> float:
        """Return the loss in nats per token over all tokens of a group."""
        sums, counts = self.network.author_losses(rows.ids, rows.lengths, self.kind, point)
        return float(sums.sum() / counts.sum())

    def by_author(self, rows: Rows, point: Any) -> list[float]:
        """Return the loss in nats per token of every author."""
        sums, counts = self.network.author_losses(rows.ids, rows.lengths, self.kind, point)
        return [round(float(value), 4) for value in sums / counts.clamp(min=1)]

    @property
    def clip(self) -> float:
        """The median length of the manuals' gradients at the pre-trained model."""
        if "clip" not in self.cache:
            lengths = self.gradients(self.texts.manuals, self.zero()).norm(dim=1)
            self.cache["clip"] = float(lengths.median())
        return float(self.cache["clip"])

    def basis(self, source: str, k: int, point: Any) -> Any:
        """Return the k leading directions of public gradients at ``point``, orthonormal rows (k, d)."""
        group = {
            "vol": self.texts.volunteers,
            "man": self.texts.manuals,
            "lang": self.texts.languages,
        }[source]
        rows = self.gradients(group, point)
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        values, vectors = torch.linalg.eigh((rows @ rows.T).double())
        order = values.argsort(descending=True)[:k]
        basis = (vectors[:, order] / values[order].sqrt()).T.float() @ rows
        return torch.linalg.qr(basis.T.double())[0].T.float().contiguous()


def mean_of(
    task: Task, mechanism: str, epsilon: float, dimension: int, cohort: int, noise: float = 1.0
) -> Mean:
    """Return what makes a noisy mean of rows in the unit ball.

    ``noise`` scales normal noise instead of the law.
    """
    known = task.mechanisms
    if mechanism == "none":
        return lambda rows, generator: rows.mean(dim=0)
    if noise != 1.0:
        squared = known["vmvu", dimension, epsilon][2]
        deviation = noise * math.sqrt(squared)
        return lambda rows, generator: gaussian_mean(rows, deviation, generator)
    if mechanism == "vmvu":
        vector = known["vmvu", dimension, epsilon][0]
        return lambda rows, generator: vector_mean(rows, vector, generator)
    if mechanism == "payloads":
        uplink = Uplink(known["vmvu", dimension, epsilon][0])
        return lambda rows, generator: _by_payloads(uplink, rows)
    if mechanism in ("gaussian", "central"):
        sigma = known["gaussian", dimension, epsilon][0].noise_multiplier
        each = sigma if mechanism == "gaussian" else sigma / math.sqrt(cohort)
        return lambda rows, generator: gaussian_mean(rows, each, generator)
    wide = dimension if dimension > max(WIDE.values()) else WIDE[epsilon]
    codes = known["sum", wide, epsilon, cohort, None][0].core

    def summed(rows: Any, generator: Any) -> Any:
        spread = torch.zeros((rows.shape[0], wide), device=rows.device)
        spread[:, :dimension] = rows
        return unit_mean(spread, codes, generator)[:dimension]

    return summed


def _by_payloads(uplink: Uplink, rows: Any) -> Any:
    payloads = [uplink.send(row) for row in rows.double().cpu().numpy()]
    return torch.from_numpy(np.asarray(uplink.receive(payloads), dtype=np.float32)).to(rows.device)


@frozen(eq=False)
class Setting:
    """One line of an experiment, all but its step and seed."""

    mechanism: str
    epsilon: float = 0.0
    source: str = ""  # of the basis: vol, man, lang, or none
    k: int = 0
    cohort: int = COHORT
    passes: int = 1
    clients: int = 0  # all
    refresh: bool = False  # a new basis every round
    noise: float = 1.0


def train(
    task: Task,
    setting: Setting,
    start: Any,
    rate: float,
    seed: int,
    clients: Rows | None = None,
    basis: Any = None,
    watch: Callable[[int, Any, Any, Any], Any] | None = None,
) -> Any:
    """Return the trained numbers.

    Args:
        task: what is trained.
        setting: how.
        start: the numbers to begin with.
        rate: the server's step in clips.
        seed: of the order of clients, and of noise.
        clients: the clients' texts; the task's unless given.
        basis: directions at ``start``, where they were computed before.
        watch: called with (round, places of clients, clipped rows, mean function) in place of the
            mean; for audits.
    """
    device = task.network.device
    crowd = task.texts.clients if clients is None else clients
    limit = setting.clients or crowd.count
    generator = torch.Generator(device).manual_seed(seed)
    shuffle = torch.Generator().manual_seed(seed)
    cohort = min(setting.cohort, limit)
    each = limit // cohort
    rounds = each * setting.passes
    point = start.clone()
    speed = torch.zeros_like(point)
    dimension = setting.k or task.dimension
    mean = mean_of(
        task, setting.mechanism, setting.epsilon, dimension, setting.cohort, setting.noise
    )
    radius = task.clip * (SUBSPACE_CLIP if setting.k else 1.0)
    if setting.k and basis is None:
        basis = task.basis(setting.source, setting.k, point)
    order = torch.randperm(crowd.count, generator=shuffle)[:limit]
    for number in range(rounds):
        place = number % each
        if place == 0 and number:
            order = order[torch.randperm(limit, generator=shuffle)]
        if setting.k and setting.refresh and number:
            basis = task.basis(setting.source, setting.k, point)
        here = order[place * cohort : (place + 1) * cohort].to(device)
        rows = task.gradients(crowd.at(here), point)
        if setting.k:
            rows = rows @ basis.T
        rows = torch.nan_to_num(rows / rows.norm(dim=1, keepdim=True).clamp(min=radius))
        found = (
            mean(rows, generator) if watch is None else watch(number, here, rows, (mean, generator))
        )
        step = found @ basis if setting.k else found
        speed = MOMENTUM * speed + step
        point = point - rate * (1 - (1 - LAST) * number / rounds) * speed
    return point


def train_public(
    task: Task, group: Rows, rate: float, steps: int, every: int, seed: int
) -> tuple[Any, int, float]:
    """Train on public texts alone; return the numbers, the step and the loss of the best moment on `choose`.

    Batches of 53 texts, clipped alike; the step falls to a tenth over ``steps``. The end is chosen
    as the step size is: on authors that are neither public text nor test.
    """
    device = task.network.device
    shuffle = torch.Generator().manual_seed(seed)
    point = task.zero()
    speed = torch.zeros_like(point)
    best = (point, 0, task.loss(task.texts.choose, point))
    order = torch.empty(0, dtype=torch.long)
    batch = min(53, group.count)
    for number in range(1, steps + 1):
        if order.numel() < batch:
            order = torch.randperm(group.count, generator=shuffle)
        here = order[:batch].to(device)
        order = order[batch:]
        rows = task.gradients(group.at(here), point)
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=task.clip)
        speed = MOMENTUM * speed + rows.mean(dim=0)
        point = point - rate * (1 - (1 - LAST) * (number - 1) / steps) * speed
        if number % every == 0:
            loss = task.loss(task.texts.choose, point)
            if loss < best[2]:
                best = (point.clone(), number, loss)
            elif number - best[1] >= 4 * every:
                break
    return best
