"""A federation of 100 clients in plain PyTorch.

No engine, a network of one's own, sums behind masks.

    python examples/plain-pytorch/federation.py

Ten rounds take about a minute of one core, nearly all of it for the masks of 100 clients that one
process plays.

Idea     14 handwritten digits on each of 100 clients. `compare` says beforehand what can work: so
         few clients cannot teach anything by single private updates, and sums of one-bit updates
         are noisy but may do. So every client clips, randomises and masks its update, and the
         server learns their sum alone. The network came with BatchNorm, whose running statistics
         are not parameters: `group_norm` makes it one that can be learnt in private.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from quietbit import (
    Adjacency,
    Ball,
    SumPlan,
    Trust,
    Uplink,
    calibrate,
    compare,
    group_norm,
    simulate_secure_sum,
)
from quietbit.arrays import Structure, restore
from quietbit.mechanism.abilities import Summable
from quietbit.wire.payload import Payload

CLIENTS, EPSILON, DELTA, CLIP = 100, 8.0, 1e-5, 0.6


def network() -> torch.nn.Module:
    """Make a small convolutional network, as one finds them."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 10),
    )


def update_of(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float, steps: int = 5
) -> dict[str, torch.Tensor]:
    """Return what a client learns from its own images.

    The model before minus the model after a few steps.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(before)
    return {name: before[name] - after[name] for name in before}


def part(flat: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
    """Return a range of the flat mean, for the arrays of the model to be made of."""
    return flat[start:stop]


def main(rounds: int, seed: int) -> float:
    """Train, print what happened, and return the accuracy on images that no client has."""
    torch.manual_seed(seed)
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    images = torch.tensor(data.images[order, None] / 16 - 0.5, dtype=torch.float32)
    labels = torch.tensor(data.target[order])
    each = 14
    test = slice(CLIENTS * each, None)

    model = group_norm(network(), groups=4)
    ball = Ball.of(model.state_dict())
    found = compare(
        ball,
        epsilon=EPSILON,
        delta=DELTA,
        adjacency=Adjacency.ZERO_OUT,
        clients=CLIENTS,
        cohort=CLIENTS,
        rounds=rounds,
    )
    for trust in (Trust.LOCAL, Trust.SECURE_AGGREGATION):
        best = found.best(trust)
        if best is not None:
            print(f"{trust.value}: {best.name}, {best.verdict}")
    calibrated = calibrate(
        "imvu",
        ball=ball,
        epsilon=EPSILON,
        delta=DELTA,
        adjacency=Adjacency.ZERO_OUT,
        releases=rounds,
        honest=CLIENTS,
    )
    uplink, structure = (
        Uplink(calibrated.mechanism, like=model.state_dict(), clip=CLIP),
        Structure.of(model.state_dict()),
    )
    sums = Summable.of(calibrated.mechanism)
    print(calibrated.guarantee.sentence())
    print(f"{rounds} rounds of about 6 seconds each", flush=True)
    accuracy, size = 0.0, 0
    for number in range(rounds):
        codes = {}
        for client in range(CLIENTS):
            mine = slice(client * each, (client + 1) * each)
            update = update_of(model, images[mine], labels[mine], rate=0.1)
            codes[client + 1] = Payload.from_bytes(uplink.send(update)).codes()
        plan = SumPlan(CLIENTS, 67, ball.dimension, f"round {number + 1}".encode())
        size = plan.payload_size
        total = simulate_secure_sum(
            plan, codes
        )  # plays all parties; SumClient and SumServer are the halves
        flat = CLIP * sums.mean_from_sum(total.total, len(total.clients))
        mean = restore(structure, partial(part, flat))
        model.load_state_dict(
            {name: value - 2.0 * mean[name] for name, value in model.state_dict().items()}
        )
        with torch.no_grad():
            accuracy = float((model(images[test]).argmax(dim=1) == labels[test]).float().mean())
        print(
            f"round {number + 1}: {100 * accuracy:.1f} % of {len(labels[test])} images "
            "that no client has",
            flush=True,
        )
    print(f"{size:,} bytes per client per round for the masked codes")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--seed", type=int, default=0, help="of data and model; the noise is the operating system's"
    )
    given = parser.parse_args()
    main(given.rounds, given.seed)
