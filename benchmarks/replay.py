"""A round replayed by a node, against copying its model: time and bytes.

Idea     replaying is one rotation of p = 2^ceil(log2 d) numbers, one step over d, and one digest of
         the state. The yardstick is copying the model's d float32 numbers ten times on the same
         core.

    python benchmarks/replay.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from quietbit import Ball, Norm, calibrate
from quietbit._threads import one_thread
from quietbit.wire.downlink import Downlink, Replica, ServerStep

RUN, KEEP, TIMES = b"benchmark", 1024, 7


def least(work: Callable[[], object]) -> float:
    """The least processor time of several calls, in seconds."""
    found = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure(dimension: int, momentum: float) -> str:
    ball = Ball(Norm.L2, dimension)
    mechanism = calibrate(
        "vmvu",
        ball=ball,
        epsilon=8.0,
        delta=1e-5,
        adjacency="zero-out",
        coordinates=KEEP,
        rows="shared",
    ).mechanism
    rng = np.random.default_rng(0)
    start = rng.normal(size=dimension).astype(np.float32)
    server, client, target = (
        Downlink(Replica(start), ServerStep(0.5, momentum)),
        Replica(start),
        np.empty_like(start),
    )
    copies = 10 * least(lambda: np.copyto(target, start))
    contents = [
        server.advance(rng.normal(size=KEEP) / 100, mechanism.for_round(RUN, number), number)
        for number in range(1, TIMES + 1)
    ]
    left = iter(contents)

    def replay() -> None:
        client.replay([next(left)], mechanism, RUN)

    spent = least(replay)
    if client.digest != server.replica.digest:
        raise SystemExit("The client's model is not the server's.")
    sizes = f"{len(contents[0]):,} | {client.nbytes:,}"
    return f"| {dimension:,} | {momentum:g} | {1e3 * spent:.1f} | {1e3 * copies:.1f} | {spent / copies:.2f} | {sizes} |"


if __name__ == "__main__":
    print(
        "| parameters | momentum | replay, ms | ten copies, ms | ratio | bytes of a round | bytes of the state |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with one_thread():
        for size in (1_000_000, 10_000_000, 36_500_000):
            for speed in (0.0, 0.9):
                print(measure(size, speed), flush=True)
