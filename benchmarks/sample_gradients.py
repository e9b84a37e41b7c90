"""Clipped sums of sample gradients: quietbit's one backward pass against Opacus's modes, the same model and batch.

Idea     medians of interleaved runs, as ratios, because machines are noisy. Opacus is optional: `pip install opacus`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from quietbit.gradients import clipped_sum

CLIP = 1.0


def network(name: str) -> tuple[Any, tuple[int, ...]]:
    """Return a model and the shape of a sample."""
    if name == "head":
        return nn.Linear(256, 10), (256,)
    if name == "dense":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), (784,)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 62)), (1, 28, 28)  # fmt: skip


def ours(model: Any, inputs: Any, targets: Any) -> Callable[[], Any]:
    loss = nn.CrossEntropyLoss(reduction="none")
    return lambda: clipped_sum(model, loss, (inputs, targets), CLIP)


def opacus_rows(model: Any, inputs: Any, targets: Any, mode: str) -> Callable[[], Any]:
    """Opacus writes every sample's gradient, then clips and adds up as its optimiser does."""
    from opacus.grad_sample.utils import wrap_model

    wrapped = wrap_model(model, grad_sample_mode=mode, loss_reduction="sum")
    loss = nn.CrossEntropyLoss(reduction="sum")

    def run() -> Any:
        wrapped.zero_grad(set_to_none=True)
        for part in wrapped.parameters():
            part.grad_sample = None
        loss(wrapped(inputs), targets).backward()
        rows = [part.grad_sample for part in wrapped.parameters()]
        lengths = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
        factors = (CLIP / (lengths + 1e-6)).clamp(max=1.0)
        return [torch.einsum("i,i...", factors, row) for row in rows]

    return run


def opacus_ghost(model: Any, inputs: Any, targets: Any) -> Callable[[], Any]:
    """Opacus takes lengths without writing gradients, then runs a second backward pass of the weighted loss."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    loss = nn.CrossEntropyLoss(reduction="none")

    def run() -> Any:
        wrapped.zero_grad(set_to_none=True)
        losses = loss(wrapped(inputs), targets)
        wrapped.enable_hooks()
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        wrapped.zero_grad(set_to_none=True)
        (losses * factors).sum().backward()
        wrapped.enable_hooks()
        return [part.grad for part in wrapped.parameters()]

    return run


def main() -> None:
    """Print a table of milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':>8} {'way':>14} {'ms':>8} {'times ours':>11}")
    for name in ("head", "dense", "conv"):
        torch.manual_seed(0)
        made, shape = network(name)
        inputs = torch.randn(given.batch, *shape, device=given.device)
        targets = torch.randint(0, 10, (given.batch,), device=given.device)
        weights = made.state_dict()

        def fresh(name: str = name, weights: Any = weights) -> Any:
            model, _ = network(name)
            model.load_state_dict(weights)
            return model.to(given.device)

        ways: dict[str, Callable[[], Any]] = {"quietbit": ours(fresh(), inputs, targets)}
        try:
            ways["opacus hooks"] = opacus_rows(fresh(), inputs, targets, "hooks")
            ways["opacus functorch"] = opacus_rows(fresh(), inputs, targets, "functorch")
            ways["opacus ghost"] = opacus_ghost(fresh(), inputs, targets)
        except ImportError:
            print("opacus is not installed")
        wanted = torch.cat([part.reshape(-1) for part in ways["quietbit"]()])
        times: dict[str, list[float]] = {way: [] for way in ways}
        for way, run in ways.items():
            found = torch.cat([part.reshape(-1) for part in run()])
            assert float((found - wanted).norm() / wanted.norm()) < 1e-3, way
        for _ in range(given.repeats):
            for way, run in ways.items():
                times[way].append(timed(run, given.device))
        base = statistics.median(times["quietbit"])
        for way, seconds in times.items():
            middle = statistics.median(seconds)
            print(f"{name:>8} {way:>16} {1000 * middle:8.2f} {middle / base:11.2f}")


def timed(run: Callable[[], Any], device: str) -> float:
    """Return the seconds of one run."""
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
