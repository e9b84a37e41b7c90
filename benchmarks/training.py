"""How fast a private training goes, and where its time goes.

Idea     a round on MNIST's ScatterNet dimensions (39,700 parameters, 600 clients of one example,
         random features: the arithmetic does not look at them) is timed whole, beside the kernel on
         its own, and beside the published way of doing the same round: materialise every gradient,
         softmax over natural parameters, torch.bernoulli, 64-bit codes, decode, mean. With a
         device, many trainings at once are timed instead, mechanism by mechanism.

    python benchmarks/training.py [--rounds 5] [--cohort 600] [--threads 1]
    python benchmarks/training.py --device cuda [--runs 36]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round
from quietbit.federation.simulate.plan import SimulatedPlan
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.kernel.base import packed_size
from quietbit.kernel.rng import secure_rng
from quietbit.kernel.select import select
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.target import Adjacency
from quietbit_lab.task.dataset import Dataset, Examples, Partition
from quietbit_lab.task.linear import LinearSoftmax

FEATURES, CLASSES, EXAMPLES, CLIP, EPSILON = 3969, 10, 3000, 8.0, 1.0
ROWS = 45


@final
@dataclass(frozen=True)
class Bench:
    """One problem with its mechanism."""

    problem: LinearSoftmax
    mechanism: InterpolatedMVU
    plan: SimulatedPlan
    steps: LocalPlan


def setup(cohort: int) -> Bench:
    from quietbit.design.solve import solve
    from quietbit.design.table import DesignSpec

    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((EXAMPLES, FEATURES), dtype=np.float32)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    examples = Examples(inputs, labels)
    problem = LinearSoftmax(
        Dataset("random", CLASSES, examples, examples), Partition.one_each(EXAMPLES)
    )
    ball = Ball(Norm.L2, problem.dimension)
    plan = SimulatedPlan(
        {"name": "imvu", "design_epsilon": EPSILON},
        clip=CLIP,
        adjacency=Adjacency.ZERO_OUT,
        cohort=cohort,
    )
    mechanism = InterpolatedMVU(solve(DesignSpec(2, 1, EPSILON)), ball)
    return Bench(problem, mechanism, plan, LocalPlan(Norm.L2, CLIP))


def whole_rounds(bench: Bench, side: ClientSide, rounds: int, cohort: int) -> float:
    parameters, best = np.zeros(bench.problem.dimension, dtype=np.float32), float("inf")
    for number in range(rounds + 1):
        clients = np.random.default_rng(number).permutation(EXAMPLES)[:cohort].astype(np.int64)
        began = time.perf_counter()
        play_round(number + 1, clients, bench.mechanism, side, parameters).mean()
        best = min(best, time.perf_counter() - began) if number else best
    return best


def kernel_alone(bench: Bench, rounds: int) -> float:
    """Seconds per client of the kernel on one long update."""
    count = ROWS * bench.problem.dimension
    x = np.random.default_rng(1).standard_normal(count, dtype=np.float32) / np.float32(
        np.sqrt(count)
    )
    out, kernel, best = np.empty(packed_size(1, count), dtype=np.uint8), select("cpu"), float("inf")
    for _ in range(4 * rounds):
        began = time.perf_counter()
        kernel.sample_packed(bench.mechanism.sampler, x, secure_rng(), out)
        best = min(best, (time.perf_counter() - began) / ROWS)
    return best


def published_round(bench: Bench, rounds: int, cohort: int) -> float:
    """Seconds of one round as the published code does it, in torch."""
    design = bench.mechanism.design
    natural = torch.log(torch.tensor(design.probabilities, dtype=torch.float32))
    alphabet = torch.tensor(design.alphabet, dtype=torch.float32)
    inputs = torch.from_numpy(bench.problem.dataset.train.inputs[:cohort])
    labels = torch.from_numpy(bench.problem.dataset.train.labels[:cohort])
    weight, best = torch.zeros(CLASSES, FEATURES), float("inf")

    def once() -> Any:
        errors = torch.softmax(inputs @ weight.T, dim=1) - torch.nn.functional.one_hot(
            labels, CLASSES
        )
        gradients = torch.einsum("nc,nf->ncf", errors, inputs).reshape(cohort, -1)
        lengths = gradients.norm(dim=1, keepdim=True)
        gradients = gradients * torch.clamp(CLIP / lengths, max=1.0)
        total = torch.zeros(gradients.shape[1])
        for row in gradients:  # all at once needs cohort x parameters x 2 probabilities
            place = (0.5 + row / (2 * CLIP)).unsqueeze(-1)
            probabilities = torch.softmax((1 - place) * natural[0] + place * natural[1], dim=-1)
            codes = torch.bernoulli(probabilities[..., 1]).long()
            total += (2 * alphabet[codes] - 1) * CLIP
        return total / cohort

    for _ in range(rounds):
        began = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - began)
    return best


TOGETHER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no privacy", {"mechanism": "none"}),
    ("Gaussian", {"mechanism": "gaussian", "noise_multiplier": 2.0}),
    ("Skellam, 16 bits", {"mechanism": "skellam", "noise_multiplier": 2.0}),
    ("I-MVU, 1 bit, epsilon 0.25", {"mechanism": "imvu", "design_epsilon": 0.25}),
    ("I-MVU, 1 bit, epsilon 5", {"mechanism": "imvu", "design_epsilon": 5.0}),
    (
        "I-MVU, 3 bits, 8 levels",
        {"mechanism": "imvu", "design_epsilon": 5.0, "bits": 3, "levels": 8},
    ),
    ("SignSGD, noise 0.5", {"mechanism": "sign", "noise_multiplier": 0.5}),
    ("SignSGD, noise 5", {"mechanism": "sign", "noise_multiplier": 5.0}),
    ("MVU, 1 bit", {"mechanism": "mvu", "design_epsilon": 1.0, "bits": 1}),
)


def together(device: str, runs: int, rounds: int, cohort: int) -> None:
    """Seconds per training and round when many are trained side by side."""
    from quietbit_lab.experiment.record import Setting
    from quietbit_lab.task.batch import Batch
    from quietbit_lab.task.linear_device import DeviceProblem, open_device

    data = DeviceProblem(setup(cohort).problem, open_device(device))

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    common: dict[str, Any] = {
        "rounds": 100 * rounds,
        "cohort": cohort,
        "clip": CLIP,
        "adjacency": "zero-out",
        "seed": 1,
        "rng": "seeded",
    }
    print(
        f"{cohort} clients x {data.problem.dimension:,} parameters on {device}, {runs} trainings at once"
    )
    print(f"{'':34} {'us per round':>14} {'G coordinates/s':>16}")
    for name, given in TOGETHER:
        count = runs if given["mechanism"] != "mvu" else max(1, runs // 9)
        batch = Batch(
            data,
            [Setting.from_json({"lr": 1e-4 * (k + 1), **given, **common}) for k in range(count)],
        )
        batch.advance(1)
        wait()
        began = time.perf_counter()
        batch.advance(rounds)
        wait()
        seconds = (time.perf_counter() - began) / (rounds * count)
        print(
            f"{name:34} {1e6 * seconds:14.1f} {cohort * data.problem.dimension / seconds / 1e9:16.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cohort", type=int, default=600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", help="time many trainings at once on cpu or cuda")
    parser.add_argument("--runs", type=int, default=36, help="how many, with --device")
    arguments = parser.parse_args()
    if arguments.device is not None:
        together(arguments.device, arguments.runs, arguments.rounds, arguments.cohort)
        return
    bench = setup(arguments.cohort)
    size = bench.problem.dimension
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)  # the published round's tensors are too short to gain from more
        ways = (bench.problem, bench.steps, bench.plan, bench.mechanism, arguments.threads)
        whole = whole_rounds(bench, ClientSide(*ways), arguments.rounds, arguments.cohort)
        alone = kernel_alone(bench, arguments.rounds)
        published = published_round(bench, max(1, arguments.rounds // 2), arguments.cohort)
    print(
        f"{arguments.cohort} clients x {size:,} parameters, one bit, threads = {arguments.threads}; best of several"
    )
    print(f"{'':34} {'us per client':>14} {'G coordinates/s':>16}")
    per_client = whole / arguments.cohort
    for name, seconds in (
        ("whole round through Uplink.send", per_client),
        ("the kernel alone", alone),
        ("published way, whole round", published / arguments.cohort),
    ):
        print(f"{name:34} {1e6 * seconds:14.1f} {size / seconds / 1e9:16.3f}")
    print(
        f"An MNIST epoch (60,000 clients) takes {60000 * per_client:.1f} s; published way {100 * published:.0f} s."
    )


if __name__ == "__main__":
    main()
