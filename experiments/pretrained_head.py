r"""A linear head on public features, learnt in private: many trainings side by side on one device.

Idea     a client per image, each takes part ``releases`` times. Step, clip and whether late models
         are averaged are chosen on a validation split (45,000 clients train, 5,000 images of the
         training set score); then all 50,000 train and the test set is looked at once, with other
         seeds. Releases are drawn from the mechanisms' laws (`quietbit_lab.cohort`).
Symbols  G trainings at a time; K classes; F features of length LENGTH; W (G, K, F + 1).

    PYTHONPATH=src python experiments/pretrained_head.py eff.npz --turn lda --features 128 --device
    cuda --out head.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from quietbit import Ball, calibrate
from quietbit_lab.cohort.means import gaussian_mean, unit_mean
from quietbit_lab.cohort.releases import kept_rows, put_back, vector_mean

DELTA, MOMENTUM, COHORT, ROUNDS, CLASSES, LENGTH = 1e-5, 0.5, 500, 100, 10, 6.0
HELD_OUT, HEADER, SEED = (
    5000,
    56,
    8,
)  # images that choose; bytes of a payload's head, and of a client's places
STEPS = tuple(0.02 * 2**place for place in range(10))
CLIPS = (1.0, 2.0, 4.0)  # for features of length 6
STARTS = (2.0, 5.0, 12.0)  # lengths of a public start
# the power of a direction's public variance that it is divided by, for the turns named soft
SOFT = 0.25
CHOOSING, REPORTING = 2, 5  # trainings per setting
MOST = (16.0, 30.0)  # of epsilon that the vector mechanism is designed for: one release, several
ENTRIES = 3e8  # numbers in a batch of rows
BEGAN = time.monotonic()


class Heads:
    """Softmax regression on features, G of them at once."""

    def __init__(
        self, path: Path, turn: str, features: int, device: str, start: bool = False
    ) -> None:
        with np.load(path) as kept:
            found = {name: torch.from_numpy(kept[name]).to(device) for name in kept.files}
        self.device = device
        self.train, self.labels = (
            self._turned(found, "train", turn, features),
            found["train_labels"].long(),
        )
        self.test, self.test_labels = (
            self._turned(found, "test", turn, features),
            found["test_labels"].long(),
        )
        self.width, self.start = (
            self.train.shape[1],
            torch.zeros((CLASSES, self.train.shape[1]), device=device),
        )
        if start:
            rows = found["start"] - found["start"].mean(dim=0)
            basis = self._basis(found, turn, features, SOFT)
            rows = torch.linalg.lstsq(
                basis, rows.T
            ).solution.T  # what scores these features as the rows would channels
            self.start[:, :-1] = rows / rows.norm()
        self.dimension = CLASSES * self.width

    def _turned(self, found: dict[str, Any], part: str, turn: str, features: int) -> Any:
        if "steps" in found:  # eight bits a principal axis
            soft = found["spread"][:features].pow(-SOFT) if turn == "pca-soft" else 1.0
            x = found[part][:, :features].float() * found["steps"][:features] * soft
        elif turn == "none":
            x = found[part].float() - found["mean"]
        else:
            x = (found[part].float() - found["mean"]) @ self._basis(found, turn, features, SOFT)
        x = x * (LENGTH / x.norm(dim=1, keepdim=True).clamp(min=1e-12))
        return torch.cat((x, torch.ones((x.shape[0], 1), device=self.device)), dim=1)

    def _basis(self, found: dict[str, Any], turn: str, features: int, power: float) -> Any:
        """Return public directions, divided by a power of their public variance if soft."""
        kind, _, how = turn.partition("-")
        basis = found[kind][:, :features].float()
        spread = found["spread" if kind == "pca" else f"{kind}_spread"] if how == "soft" else None
        return basis if spread is None else basis * spread[:features].pow(-power)

    def rows(self, weights: Any, clients: Any, clips: Any) -> Any:
        """Clipped gradients (G, n, d) in units of the clip; ``clients`` is (G, n)."""
        errors, x = self._errors(weights, clients, clips)
        return (errors[:, :, :, None] * x[:, :, None, :]).reshape(*clients.shape, -1)

    def mean(self, weights: Any, clients: Any, clips: Any) -> Any:
        """Their means, (G, d), without a row of each."""
        errors, x = self._errors(weights, clients, clips)
        return (errors.transpose(1, 2) @ x / clients.shape[1]).reshape(clients.shape[0], -1)

    def _errors(self, weights: Any, clients: Any, clips: Any) -> tuple[Any, Any]:
        """Return the factors of clipped gradients: (G, n, K) and (G, n, F + 1)."""
        x = self.train[clients]
        errors = torch.softmax(x @ weights.transpose(1, 2), dim=2)
        errors.scatter_add_(
            2, self.labels[clients][:, :, None], torch.full_like(errors[:, :, :1], -1.0)
        )
        norms = errors.norm(dim=2) * x.norm(dim=2)
        return errors / torch.maximum(norms, clips[:, None])[:, :, None], x

    def accuracies(self, weights: Any, inputs: Any, labels: Any) -> Any:
        """Of every one of the heads."""
        scores = torch.einsum("nf,gkf->gnk", inputs, weights)
        return (scores.argmax(dim=2) == labels).float().mean(dim=1).cpu().numpy()


def mean_of(
    name: str, cell: dict[str, Any], dimension: int, cohort: int
) -> tuple[Any, dict[str, Any]]:
    """Return a function of (rows, generator) to decoded means, in clips, and the mechanism's facts.

    ``imvu-64`` keeps 64 coordinates, ``imvu-plain`` does not rotate updates, ``imvu`` does.
    """
    if name == "none":
        return (lambda rows, generator: rows.mean(dim=-2)), {"bytes": HEADER + 4 * dimension}
    kind, _, keep = name.partition("-")
    if kind in ("sum", "central"):
        return trusting(kind, int(keep) if keep else None, cell, dimension, cohort)
    choices: dict[str, Any] = {}
    if keep == "plain":
        choices = {"rotate": False}
        keep = ""
    ball = Ball("l2", int(keep) if keep else dimension)
    aim = (
        {**cell, "epsilon": min(cell["epsilon"], MOST[cell["releases"] > 1])}
        if kind == "vmvu"
        else cell
    )
    found = calibrate(kind, ball=ball, delta=DELTA, **aim, **choices)
    mechanism: Any = found.mechanism
    facts = {
        "epsilon_upper": found.guarantee.epsilon_upper,
        "bytes": HEADER + mechanism.layout.size,
    }
    facts["bytes"] += SEED if keep else 0
    if kind == "vmvu":
        return (lambda rows, generator: vector_mean(rows, mechanism, generator)), facts
    if not keep:
        return (lambda rows, generator: unit_mean(rows, mechanism, generator)), facts

    def projected(rows: Any, generator: Any) -> Any:
        flat = rows.reshape(-1, rows.shape[-1])
        places, y = kept_rows(flat, mechanism.ball.dimension, 0, generator)
        values = unit_mean(y[:, None], mechanism, generator)  # a cohort of one each
        return put_back(values, places, rows.shape[-1], 0, rows.shape[0])

    return projected, facts


def trusting(
    kind: str, keep: int | None, cell: dict[str, Any], dimension: int, cohort: int
) -> tuple[Any, dict[str, Any]]:
    """Return means under central trust: one-bit sums behind masks, or a server's noise."""
    ball = Ball("l2", dimension)
    if kind == "central":
        central = calibrate("gaussian", ball=ball, delta=DELTA, **cell)
        noise = cast("Any", central.mechanism).noise_multiplier / math.sqrt(
            cohort
        )  # once for the whole sum
        facts = {
            "epsilon_upper": central.guarantee.epsilon_upper,
            "bytes": 4 * dimension,
            "trust": "central",
        }
        return (lambda rows, generator: gaussian_mean(rows, noise, generator)), facts
    summed = calibrate("imvu", ball=ball, delta=DELTA, honest=cohort, coordinates=keep, **cell)
    codes: Any = summed.mechanism.core
    facts = {"epsilon_upper": summed.guarantee.epsilon_upper, "trust": "central"}
    facts["bytes"] = -(-cohort.bit_length() * (keep or dimension) // 8)

    def mean(rows: Any, generator: Any) -> Any:
        if keep is None:
            return unit_mean(rows, codes, generator)
        flat = rows.reshape(-1, dimension)
        places, _ = kept_rows(flat[:1], keep, 0, generator)
        _, y = kept_rows(flat, keep, 0, generator, places)
        values = unit_mean(y.reshape(*rows.shape[:2], keep), codes, generator)
        return put_back(values, places.expand(rows.shape[0], keep), dimension, 0, rows.shape[0])

    return mean, facts


def train(
    heads: Heads, mean: Any, settings: list[Any], epochs: int, seed: int, clients: int, cohort: int
) -> Any:
    """Return final weights and their mean over the last half, (2, G, K, F + 1).

    ``mean`` makes releases of rows, or is the deviation of normal noise in their mean.
    """
    device, count = heads.device, len(settings)
    generator = torch.Generator(device).manual_seed(seed)
    clips, steps, starts = (
        torch.tensor(part, device=device) for part in zip(*settings, strict=True)
    )
    weights = starts[:, None, None] * heads.start
    speed, late = torch.zeros_like(weights), torch.zeros_like(weights)
    each = clients // cohort
    rounds, order = epochs * each, torch.empty(0)
    for number in range(rounds):
        place = number % each
        if place == 0:
            order = torch.rand((count, clients), generator=generator, device=device).argsort(dim=1)
        here = order[:, place * cohort : (place + 1) * cohort]
        if isinstance(mean, float):
            found = heads.mean(weights, here, clips)
            found += mean * torch.randn(found.shape, generator=generator, device=device)
        else:
            found = mean(heads.rows(weights, here, clips), generator)
        speed = MOMENTUM * speed + found.reshape(weights.shape)
        weights = weights - steps[:, None, None] * (1 - 0.9 * number / rounds) * speed
        if number >= rounds // 2:
            late += weights
    return torch.stack((weights, late / (rounds - rounds // 2)))


def line(
    heads: Heads,
    name: str,
    cell: dict[str, Any],
    grid: Sequence[Sequence[float]],
    clients: int | None,
    normal: str | None,
) -> dict[str, Any]:
    """Choose on the held-out images and report on the test images, for the first ``clients``."""
    epochs, everyone = int(cell["releases"]), heads.train.shape[0]
    held = min(HELD_OUT, everyone // 10)
    choosing, reporting = (everyone - held, everyone) if clients is None else (clients, clients)
    cohort = COHORT if clients is None else clients // ROUNDS
    budget = {key: cell[key] for key in ("epsilon", "adjacency", "releases")}
    mean, facts = mean_of(name, budget, heads.dimension, cohort)
    most = max(1, int(ENTRIES / (cohort * heads.dimension)))
    chooser = mean
    if normal:  # the deviation of what comes of updates of zero
        nothing = torch.zeros((1, cohort, heads.dimension), device=heads.device)
        chooser = float(mean(nothing, torch.Generator(heads.device).manual_seed(7)).std())
    started = bool(heads.start.any())
    clips, steps, starts = grid
    triples = list(itertools.product(clips, steps, starts if started else (0.0,)))
    tries = CHOOSING if epochs < 10 and clients is None else 1
    triples *= tries
    scores = []
    for start in range(0, len(triples), most):
        found = train(
            heads, chooser, triples[start : start + most], epochs, 1000 + start, choosing, cohort
        )
        inputs, labels = heads.train[everyone - held :], heads.labels[everyone - held :]
        scores.append(np.stack([heads.accuracies(part, inputs, labels) for part in found]))
    table = np.concatenate(scores, axis=1).reshape(2, tries, -1).mean(axis=1)
    averaged, place = np.unravel_index(int(table.argmax()), table.shape)
    clip, step, begin = triples[place]
    reporter = chooser if normal == "all" else mean
    found = train(heads, reporter, [triples[place]] * REPORTING, epochs, 1, reporting, cohort)
    got = heads.accuracies(found[averaged], heads.test, heads.test_labels)
    chosen = {
        "clip": clip,
        "step": step,
        "start": begin,
        "averaged": bool(averaged),
        "validation": float(table.max()),
    }
    edge = step in (steps[0], steps[-1])
    how = {"chosen_with": "normal noise"} if normal else {}
    how |= {"reported_with": "normal noise"} if normal == "all" else {}
    return {
        "mechanism": name,
        **cell,
        **facts,
        **chosen,
        "edge": edge,
        **how,
        "accuracies": got.tolist(),
    }


def main() -> None:
    """Every line until the time is up; what is in the file already is kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--turn",
        nargs="*",
        default=["lda"],
        help="none, lda, pca, pca-soft, classifier or classifier-soft",
    )
    parser.add_argument("--features", type=int, nargs="*", default=[128])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument(
        "--clips", type=float, nargs="*", default=list(CLIPS), help="to choose from"
    )
    parser.add_argument(
        "--starts", type=float, nargs="*", default=list(STARTS), help="lengths of a public start"
    )
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--releases", type=int, nargs="*", default=[1])
    parser.add_argument("--mechanism", nargs="*", default=["vmvu", "gaussian", "imvu"])
    parser.add_argument("--adjacency", nargs="*", default=["zero-out", "replace-one"])
    parser.add_argument(
        "--normal",
        nargs="?",
        const="choosing",
        choices=["choosing", "all"],
        help="choose, or choose and report, with normal noise of the releases' variance: quick",
    )
    parser.add_argument(
        "--start", action="store_true", help="begin with the public classifier's rows of the names"
    )
    parser.add_argument(
        "--clients", type=int, nargs="*", default=[None], help="how many images; all unless given"
    )
    parser.add_argument(
        "--steps", type=float, nargs="*", default=list(STEPS), help="to choose from, increasing"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    done = json.loads(given.out.read_text()) if given.out.exists() else []
    for turn, features in itertools.product(given.turn, given.features):
        heads = Heads(given.file, turn, features, given.device, given.start)
        say(f"{turn} {features}: {heads.dimension:,} parameters")
        for clients, releases, adjacency, epsilon, name in itertools.product(
            given.clients, given.releases, given.adjacency, given.epsilon, given.mechanism
        ):
            cell = {"epsilon": epsilon, "adjacency": adjacency, "releases": releases}
            cell |= {} if clients is None else {"clients": clients}
            what = {"turn": turn, "features": heads.width - 1, "started": given.start}
            if name == "none" and (epsilon, adjacency) != (given.epsilon[0], given.adjacency[0]):
                continue
            if any(
                all(one[key] == value for key, value in {**cell, **what, "mechanism": name}.items())
                for one in done
            ):
                continue
            if time.monotonic() - BEGAN > 60 * given.minutes:
                say("time is up")
                return
            done.append(
                what
                | line(
                    heads,
                    name,
                    cell,
                    (given.clips, given.steps, given.starts),
                    clients,
                    given.normal,
                )
            )
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(done, indent=1))
            last, got = done[-1], 100 * np.array(done[-1]["accuracies"])
            how = f"held out {100 * last['validation']:.1f}, step {last['step']:g}"
            how += f", start {last['start']:g}"
            how += f", clip {last['clip']:g}, averaged {last['averaged']}, edge {last['edge']}"
            say(f"{turn} {features} {name} {cell}: {got.mean():.1f} +- {got.std():.1f} ({how})")


def say(words: str) -> None:
    """Print a line with the elapsed time."""
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", flush=True)


if __name__ == "__main__":
    main()
