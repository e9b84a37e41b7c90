"""Time the gradients of single samples.

Rows as quietbit makes them beside Opacus's modes, on the same model and batch.

Idea     each makes one gradient per sample; medians of turns, each of some runs. `whole` is a batch of
         samples that lie side by side and fill their tiles. `drawn` is a batch drawn at random
         from ten times as many samples, as `dp_sgd_step` does it: samples keep the lane of their
         place, so that some slots stay empty. Opacus leaves gradients with their parameters; they
         are joined to rows only to be compared.

Opacus is not among this repository's pins: pip install --no-deps opacus opt-einsum.

    PYTHONPATH=src python benchmarks/sample_gradients.py [--device cuda] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from quietbit.gradients import SampleGradients

TURN = 0.02  # seconds at least, as batches follow each other in a training
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def network(name: str) -> tuple[Any, tuple[int, ...]]:
    """Return a model and the shape of a sample."""
    if name == "head":
        return nn.Linear(256, 10), (256,)
    if name == "dense":
        layers = [
            nn.Linear(784, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        ]
        return nn.Sequential(*layers), (784,)
    layers = [
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 62),
    ]
    return nn.Sequential(*layers), (1, 28, 28)


def ways(name: str, weights: Any, data: tuple[Any, Any]) -> dict[str, Callable[[], Any]]:
    """Return every way that is installed, each with a model of its own."""
    device = str(data[0].device)

    def fresh() -> Any:
        model, _ = network(name)
        model.load_state_dict(weights)
        return model.to(device)

    gradients = SampleGradients(fresh(), CROSS_ENTROPY, data)
    assert gradients.way == "mapped"
    count = len(data[0])
    many = (data[0].repeat(10, *[1] * (data[0].dim() - 1)), data[1].repeat(10))
    places = np.sort(np.random.default_rng(0).choice(10 * count, count, replace=False))

    def taken(of: tuple[Any, Any], where: Any) -> int:
        return sum(len(rows) for _, rows in gradients.pieces(of, where))

    found: dict[str, Callable[[], Any]] = {
        "whole": lambda: taken(data, np.arange(count)),
        "drawn": lambda: taken(many, places),
    }
    try:
        for mode in ("hooks", "functorch", "ew"):
            found[f"opacus {mode}"] = opacus_rows(fresh(), data, mode)
    except ImportError:
        print("opacus is not installed")
    return found


def opacus_rows(model: Any, data: tuple[Any, Any], mode: str) -> Callable[[], Any]:
    """Opacus writes every sample's gradient; joined here into rows, as a gate takes them."""
    from opacus.grad_sample.utils import wrap_model  # type: ignore[import-not-found,unused-ignore]

    wrapped = wrap_model(model, grad_sample_mode=mode, loss_reduction="sum", batch_first=True)
    loss = nn.CrossEntropyLoss(reduction="sum")

    def run() -> Any:
        wrapped.zero_grad(set_to_none=True)
        for part in wrapped.parameters():
            part.grad_sample = None
        loss(wrapped(data[0]), data[1]).backward()
        return wrapped

    return run


def timed(run: Callable[[], Any], device: str, times: int = 1) -> float:
    """Return seconds of one run: of the processor with one thread on a CPU, else on the clock."""
    if device != "cpu":
        torch.cuda.synchronize()
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    began = clock()
    for _ in range(times):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (clock() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=["head", "dense", "conv"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{'model':>6} {'way':>17} {'ms':>9} {'over fastest Opacus':>20}")
    for name in given.models:
        torch.manual_seed(0)
        model, shape = network(name)
        inputs = torch.randn(given.batch, *shape, device=given.device)
        targets = torch.randint(0, 10, (given.batch,), device=given.device)
        runs = ways(name, model.state_dict(), (inputs, targets))
        model = model.to(given.device)
        wanted = SampleGradients(model, CROSS_ENTROPY, (inputs, targets))((inputs, targets))
        for way, run in runs.items():
            result = run()
            if way.startswith("opacus"):
                rows = torch.cat(
                    [part.grad_sample.flatten(1) for part in result.parameters()], dim=1
                )
                assert float((rows - wanted).norm() / wanted.norm()) < 1e-3, way
        often = {way: int(TURN / timed(run, given.device)) + 1 for way, run in runs.items()}
        times: dict[str, list[float]] = {way: [] for way in runs}
        for _ in range(given.repeats):
            for way, run in runs.items():
                times[way].append(timed(run, given.device, often[way]))
        middles = {way: statistics.median(seconds) for way, seconds in times.items()}
        opacus = [middle for way, middle in middles.items() if way.startswith("opacus")]
        base = min(opacus, default=float("nan"))
        for way, middle in middles.items():
            print(f"{name:>6} {way:>17} {1000 * middle:9.2f} {middle / base:20.2f}", flush=True)


if __name__ == "__main__":
    main()
