"""One private update, sent in every way one could send it: bytes, time and error at one guarantee.

Idea     the same float32 update of a million parameters, clipped to the same length, leaves a
         client once, each way calibrated by its own rule to epsilon 1 at delta 1e-5 (zero-out
         adjacency: the neighbour's update is zero). Ways that are not installed are left out, and
         said to be.
Rows     time: processor seconds of one thread, best of several turns, relative to one-bit I-MVU;
         error: measured squared error per coordinate, relative to Gaussian noise with the smallest
         variance that the exact account allows (Balle and Wang 2018); bytes: what is sent, with
         headers where there are any.

    python benchmarks/alternatives.py [--dimension 1000000] [--repeats 5]

Opacus is not among this repository's pins: pip install --no-deps opacus opt-einsum.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from uplink_kernels import published_way

from quietbit import Adjacency, Ball, InterpolatedMVU, InvalidParameter, Norm, Uplink, calibrate
from quietbit.privacy.conversion import gaussian_epsilon_upper
from quietbit_lab.baseline.noise import Sign

EPSILON, DELTA, CLIP = 1.0, 1e-5, 1.0
Vector = NDArray[Any]


@dataclass(frozen=True)
class Way:
    """How to send: ``encode`` makes what leaves, ``size`` weighs it, ``decode`` is the server's estimate."""

    name: str
    encode: Callable[[Vector], Any]
    size: Callable[[Any], int]
    decode: Callable[[Any], Vector]
    remark: str


def ours(name: str, label: str, dimension: int, remark: str, **options: Any) -> Way:
    ball = Ball(Norm.L2, dimension)
    found = calibrate(
        name, ball=ball, epsilon=EPSILON, delta=DELTA, adjacency=Adjacency.ZERO_OUT, **options
    )
    uplink, mechanism = Uplink(found.mechanism), found.mechanism
    unit = mechanism.slope_at_zero if isinstance(mechanism, Sign) else 1.0  # +1 and -1 have no unit
    return Way(
        label, uplink.send, len, lambda data: np.asarray(uplink.receive([data])) / unit, remark
    )


def published(dimension: int) -> Way:
    """The law is that of one-bit I-MVU.

    Codes stay 64-bit tensors, and words come from torch's generator.
    """
    ball = Ball(Norm.L2, dimension)
    found = calibrate("imvu", ball=ball, epsilon=EPSILON, delta=DELTA, adjacency=Adjacency.ZERO_OUT)
    mechanism = found.mechanism
    if not isinstance(mechanism, InterpolatedMVU):
        raise TypeError(mechanism)
    natural = torch.from_numpy(np.log(mechanism.design.probabilities).astype(np.float32))

    def encode(update: Vector) -> torch.Tensor:
        x = torch.from_numpy(update)
        clipped = x * min(1.0, CLIP / float(torch.linalg.vector_norm(x)))
        return published_way(clipped, natural, mechanism.beta, CLIP)

    def size(codes: torch.Tensor) -> int:
        return codes.numel() * codes.element_size()

    return Way(
        "published code's way",
        encode,
        size,
        lambda codes: mechanism.values[codes.numpy()],
        "torch's generator",
    )


def flower(dimension: int) -> Way:
    """Flower's LocalDpMod around a client app that returns the trained model."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp.mod import LocalDpMod
    from flwr.common.serde import recorddict_to_proto
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
        1,
        1,
        1,
    )  # a message outside of any run
    mod = LocalDpMod(clipping_norm=CLIP, sensitivity=CLIP, epsilon=EPSILON, delta=DELTA)
    start = np.zeros(dimension, dtype=np.float32)
    asked = Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(start)})}),
        dst_node_id=1,
        message_type="train",
    )

    def encode(update: Vector) -> Any:
        def train(message: Any, context: Any) -> Any:
            return Message(
                RecordDict({"arrays": ArrayRecord({"w": Array(start + update)})}), reply_to=message
            )

        return mod(asked, None, train)  # type: ignore[arg-type]

    def decode(message: Any) -> Vector:
        return np.asarray(message.content["arrays"]["w"].numpy(), dtype=np.float64)

    def size(message: Any) -> int:
        return len(recorddict_to_proto(message.content).SerializeToString())

    return Way(
        "Flower's LocalDpMod", encode, size, decode, "numpy's generator; classical Gaussian rule"
    )


def opacus(dimension: int) -> Way:
    """Opacus's optimizer, with the update as the gradient of a batch of one.

    Noise from torch's generator.
    """
    from opacus.accountants.utils import get_noise_multiplier  # type: ignore[import-not-found,unused-ignore]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found,unused-ignore]

    multiplier = get_noise_multiplier(
        target_epsilon=EPSILON,
        target_delta=DELTA,
        sample_rate=1.0,
        steps=1,
        accountant="prv",
        epsilon_tolerance=1e-3,
    )
    parameter = torch.nn.Parameter(torch.zeros(dimension))
    inner = torch.optim.SGD([parameter], lr=1.0)
    optimizer = DPOptimizer(
        inner, noise_multiplier=multiplier, max_grad_norm=CLIP, expected_batch_size=1
    )

    def encode(update: Vector) -> torch.Tensor:
        optimizer.zero_grad()
        parameter.grad_sample = torch.from_numpy(update).unsqueeze(0)  # type: ignore[attr-defined]
        optimizer.pre_step()
        return parameter.grad.clone()  # type: ignore[union-attr]

    def size(gradient: torch.Tensor) -> int:
        return gradient.numel() * gradient.element_size()

    return Way(
        "Opacus, noise on the client",
        encode,
        size,
        lambda found: found.numpy(),
        "torch's generator",
    )


def ways(dimension: int) -> list[Way]:
    """All that are installed."""
    makers: tuple[Callable[[], Way], ...] = (
        lambda: ours(
            "imvu", "quietbit I-MVU, 1 bit", dimension, "ChaCha12", decoder="unbiased-at-zero"
        ),
        lambda: ours("sign", "quietbit SignSGD, 1 bit", dimension, "ChaCha12"),
        lambda: ours("skellam", "quietbit Skellam, 16 bits", dimension, "ChaCha12", bits=16),
        lambda: ours("gaussian", "quietbit Gaussian, 32 bits", dimension, "ChaCha12"),
        lambda: published(dimension),
        lambda: flower(dimension),
        lambda: opacus(dimension),
    )
    found = []
    for make in makers:
        try:
            found.append(make())
        except ImportError as error:
            print(f"left out, not installed: {error.name}")
        except InvalidParameter as error:
            print(f"left out, refused: {error}")
    return found


def best_gaussian() -> float:
    """The least variance per coordinate with which Gaussian noise meets the target exactly."""
    low, high = 0.1, 100.0  # noise multipliers: too revealing, private
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        private = gaussian_epsilon_upper(1 / (2 * middle**2), DELTA) <= EPSILON
        low, high = (low, middle) if private else (middle, high)
    return (high * CLIP) ** 2


def main() -> None:
    """Measure everything in one run and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dimension = chosen.dimension
    update = np.random.default_rng(0).normal(size=dimension).astype(np.float32)
    update *= np.float32(3 / np.linalg.norm(update))  # three times too long
    truth = update.astype(np.float64) / 3
    found, ideal = ways(dimension), best_gaussian()
    best: dict[str, float] = {way.name: math.inf for way in found}
    errors, sizes = {}, {}
    for turn in range(chosen.repeats + 1):
        for way in found:
            began = time.process_time()
            sent = way.encode(update)
            if turn > 0:  # the first turn warms up
                best[way.name] = min(best[way.name], time.process_time() - began)
            sizes[way.name] = way.size(sent)
            errors[way.name] = float(np.mean(np.square(way.decode(sent) - truth)))
    first = best[found[0].name]
    print(
        f"d = {dimension:,}, epsilon {EPSILON:g} at delta {DELTA:g} for one release, zero-out, clip {CLIP:g}"
    )
    print(f"{'':30} {'bytes':>10} {'milliseconds':>13} {'x I-MVU':>8} {'error':>7}  remark")
    for way in found:
        seconds, error = best[way.name], errors[way.name] / ideal
        print(
            f"{way.name:30} {sizes[way.name]:10,} {1e3 * seconds:13.2f} {seconds / first:8.1f} {error:7.2f}",
            end="",
        )
        print(f"  {way.remark}")


if __name__ == "__main__":
    main()
