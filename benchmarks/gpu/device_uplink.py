"""`Uplink.send` of updates that lie on a GPU.

The same payloads as on the host, and how fast, everything included.

PYTHONPATH=src python benchmarks/gpu/device_uplink.py
"""

from __future__ import annotations

import time
from typing import Any

import torch

from quietbit import Ball, Norm, Uplink, calibrate
from quietbit.kernel.rng import ChaChaBlock


class FixedKey:
    """The same key for every draw: for comparisons alone."""

    def draw(self, count: int) -> ChaChaBlock:
        """Make the block."""
        return ChaChaBlock(count, tuple(range(1, 9)))


def send(uplink: Uplink, update: Any) -> float:
    """The best of several times, in seconds, with the payload on the host."""
    taken = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        uplink.send(update)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        for name in ("imvu", "vmvu", "gaussian", "sign", "skellam"):
            found = calibrate(
                name,
                ball=Ball(Norm.L2, 5_003),
                epsilon=4.0,
                delta=1e-5,
                adjacency="replace-one",
            )
            uplink = Uplink(found.mechanism)
            here = {
                "a": torch.randn(5_000, dtype=torch.float64).to(kind) / 50,
                "b": torch.zeros(3, dtype=kind),
            }
            there = {key: value.cuda() for key, value in here.items()}
            pair = [uplink.send(update, FixedKey()) for update in (here, there)]
            print("right" if pair[0] == pair[1] else "WRONG", name, kind, len(pair[0]), "bytes")
            mean = Uplink(found.mechanism, like=there).receive(pair)
            assert mean["a"].is_cuda
            assert mean["a"].dtype is kind
    for power in (20, 24, 28):
        update = torch.randn(2**power, device="cuda") / 2 ** (power / 2)
        for name in ("imvu", "vmvu"):
            found = calibrate(
                name,
                ball=Ball(Norm.L2, 2**power),
                epsilon=4.0,
                delta=1e-5,
                adjacency="replace-one",
            )
            seconds = send(Uplink(found.mechanism), update)
            print(
                f"{name} 2^{power}: {1e3 * seconds:.2f} ms, {2**power / seconds / 1e9:.1f} billion coordinates/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
