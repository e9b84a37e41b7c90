"""Does a trained model remember? Planted sentences, and one-run audits of whole trainings.

Idea     half of CANARIES clients, by coins, take part; the others send zeros. In the first training
         a canary's text begins with a sentence of six random words, three times: exposure among
         10,000 other sentences, and an audit of who sees the final model alone. In the second a
         canary sends a random direction of the largest allowed length: an audit of who sees what
         the server sees, each release (local) or the rounds' sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from text import Rows
from training import Setting, Task, train

from quietbit_lab.cohort.releases import vector_mean
from quietbit_lab.memory import exposures, lower_bound

CANARIES = 512
ALTERNATIVES = 10_000
WORDS = 6
TIMES = 3
DELTA = 1e-5
BATCH = 2048
SETTINGS = (
    ("bias zero none", Setting("none")),
    ("bias zero none passes-5", Setting("none", passes=5)),
    ("bias zero vmvu 8", Setting("vmvu", 8.0)),
    ("bias zero vmvu 1", Setting("vmvu", 1.0)),
    ("bias zero vmvu 8 vol-16", Setting("vmvu", 8.0, "vol", 16)),
    ("bias zero vmvu 4 vol-16", Setting("vmvu", 4.0, "vol", 16)),
    ("bias zero vmvu 1 vol-16", Setting("vmvu", 1.0, "vol", 16)),
    ("bias zero sum 8", Setting("sum", 8.0)),
    ("bias zero sum 1", Setting("sum", 1.0)),
    ("bias zero central 8", Setting("central", 8.0)),
)


def remember(run: Any, say: Callable[[str], None]) -> None:
    """Plant canaries in the trainings of some lines, with the steps that those lines chose."""
    task = run.task("bias")
    secret = Secrets(task, run.given.data)
    for name, setting in SETTINGS:
        label = f"memory {name}"
        if run.has(label) or run.over or not run.has(name):
            continue
        began = time.monotonic()
        rate = run.result(name)["rate"]
        basis = run.basis("bias", "zero", setting)
        result: dict[str, Any] = {
            "name": label,
            "epsilon": setting.epsilon,
            "canaries": secret.present.size,
        }
        result |= secret.planted(setting, rate, basis)
        result |= secret.directions(setting, rate, basis)
        result["seconds"] = time.monotonic() - began
        run.add(result)
        say(
            f"{label}: exposure {result['exposure']:.2f} (absent {result['exposure_absent']:.2f}, most "
            f"{result['exposure_most']:.1f}), text audit {result['text']['epsilon_lower']:.2f}, "
            f"releases audit {result['releases']['epsilon_lower']:.2f}"
        )


class Secrets:
    """Canaries of one task: who has one, the coins, the sentences and their alternatives."""

    def __init__(self, task: Task, folder: Any) -> None:
        """Draw everything from one seed; sentences are the template's tokens and six words of the list."""
        with np.load(folder / "words.npz") as file:
            words = file["words"].astype(np.int64)
            self.template = file["template"].astype(np.int64)
            end = file["end"].astype(np.int64)
        rng = np.random.default_rng(2023)
        crowd = task.texts.clients
        count = min(CANARIES, crowd.count // 2)
        self.task = task
        self.owners = rng.permutation(crowd.count)[:count]
        self.present = rng.random(count) < 0.5
        drawn = rng.choice(words, size=(count + ALTERNATIVES, WORDS))
        self.sentences = np.concatenate(
            (np.tile(self.template, (drawn.shape[0], 1)), drawn, np.tile(end, (drawn.shape[0], 1))),
            axis=1,
        )
        ids = crowd.ids.clone()
        lengths = crowd.lengths.clone()
        for place, owner in enumerate(self.owners):
            sentence = torch.from_numpy(np.tile(self.sentences[place], TIMES)).to(ids.device)
            size = sentence.numel()
            ids[owner] = torch.cat((sentence, ids[owner, : ids.shape[1] - size]))
            lengths[owner] = min(ids.shape[1], int(lengths[owner]) + size)
        self.crowd = Rows(ids, lengths)
        self.absent = torch.zeros(crowd.count, dtype=torch.bool, device=ids.device)
        self.absent[torch.from_numpy(self.owners[~self.present]).to(ids.device)] = True
        self.before = self.losses(task.zero())

    def losses(self, point: Any) -> np.ndarray:
        """Return the loss of every sentence's secret words, canaries first."""
        ids = torch.from_numpy(self.sentences[:, :-1]).to(self.task.network.device)
        lengths = torch.full((ids.shape[0],), ids.shape[1], device=ids.device)
        skip = self.template.size - 1
        network = self.task.network
        sums, _ = network.author_losses(ids, lengths, self.task.kind, point, skip, BATCH)
        return sums.double().cpu().numpy()

    def planted(self, setting: Setting, rate: float, basis: Any) -> dict[str, Any]:
        """Train with planted sentences: exposure, and the audit of the final model."""

        def without_absent(number: int, here: Any, rows: Any, how: Any) -> Any:
            mean, generator = how
            return mean(torch.where(self.absent[here][:, None], 0.0, rows), generator)

        point = train(
            self.task,
            setting,
            self.task.zero(),
            rate,
            1,
            clients=self.crowd,
            basis=basis,
            watch=without_absent,
        )
        after = self.losses(point)
        count = self.present.size
        planted = exposures(after[:count][self.present], after[count:])
        control = exposures(after[:count][~self.present], after[count:])
        bound = lower_bound(self.before[:count] - after[:count], self.present, delta=DELTA)
        return {
            "exposure": planted.mean,
            "exposure_median": float(np.median(planted.bits)),
            "exposure_most": float(planted.bits.max()),
            "exposure_chance": planted.chance,
            "exposure_absent": control.mean,
            "exposures": [round(float(bits), 2) for bits in planted.bits],
            "text": facts(bound),
        }

    def directions(self, setting: Setting, rate: float, basis: Any) -> dict[str, Any]:
        """Train with canaries that send random directions; audit what the server sees."""
        task = self.task
        device = task.network.device
        dimension = setting.k or task.dimension
        generator = torch.Generator(device).manual_seed(7)
        units = torch.randn((self.present.size, dimension), generator=generator, device=device)
        units /= units.norm(dim=1, keepdim=True)
        place = torch.full((task.texts.clients.count,), -1, device=device)
        place[torch.from_numpy(self.owners).to(device)] = torch.arange(
            self.present.size, device=device
        )
        coins = torch.from_numpy(self.present).to(device)
        scores = torch.zeros(self.present.size, device=device)

        def seen(number: int, here: Any, rows: Any, how: Any) -> Any:
            mean, source = how
            which = place[here]
            canary = which >= 0
            sent = units[which.clamp(min=0)]
            rows = torch.where(canary[:, None], sent * coins[which.clamp(min=0)][:, None], rows)
            if setting.mechanism == "vmvu":
                vector = task.mechanisms["vmvu", dimension, setting.epsilon][0]
                releases = vector_mean(rows[:, None], vector, source)
                found = releases.mean(dim=0)
                score = (releases * sent).sum(dim=1)
            else:
                found = mean(rows, source)
                score = sent @ found
            scores[which[canary]] += score[canary]
            return found

        train(task, setting, task.zero(), rate, 1, basis=basis, watch=seen)
        bound = lower_bound(scores.double().cpu().numpy(), self.present, delta=DELTA)
        return {"releases": facts(bound)}


def facts(bound: Any) -> dict[str, Any]:
    """Return a bound's fields for a file."""
    return {
        "epsilon_lower": round(bound.epsilon_lower, 4),
        "guessed": bound.guessed,
        "right": bound.right,
        "doubt": bound.doubt,
    }
