"""The vector mechanism end to end.

A client's update of a million parameters to 80 bytes, a server's mean of 10,000.

Idea     everything is timed in one run on one core and takes turns; processor time, the best of
         several repeats counts, and the ratios are what to read. Then what is claimed is measured
         at full size: squared error and bias of `receive(send(x))`. `benchmarks/vector_kernels.py`
         times the parts.
Rows     noise = x + randn_like(x); send = all of it: norm, rotation, rows, search, header, at
         epsilon 4, replace-one, one release, k = 1,024; receive = 10,000 payloads to a mean, checks
         and the inverse transform included.

    OMP_NUM_THREADS=1 python benchmarks/vector_uplink.py [--repeats 7] [--large] [--error]
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from typing import Any

import numpy as np
import torch
from vector_kernels import Timed, best_times

from quietbit import Adjacency, Ball, Norm, Uplink, calibrate
from quietbit.kernel.select import select

K, SIZE, DIMENSION, PAYLOADS = 1024, 1 << 20, 1_000_000, 10_000


def uplink_of(dimension: int, epsilon: float = 4.0) -> Uplink:
    """Purely private at epsilon for one release, replace-one."""
    ball = Ball(Norm.L2, dimension)
    found = calibrate(
        "vmvu",
        ball=ball,
        epsilon=epsilon,
        delta=0.0,
        adjacency=Adjacency.REPLACE_ONE,
        coordinates=K,
    )
    return Uplink(found.mechanism, max_payloads=PAYLOADS)


def speed(repeats: int) -> None:
    """The ratios, in one run."""
    update = np.random.default_rng(1).standard_normal(DIMENSION, dtype=np.float32)
    tensor, uplink = torch.from_numpy(update), uplink_of(DIMENSION)
    short = np.zeros(DIMENSION, dtype=np.float32)
    payloads = [uplink.send(short) for _ in range(100)] * (PAYLOADS // 100)
    values, other = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    tasks: Timed = {
        "noise": lambda: tensor + torch.randn_like(tensor),
        "send": lambda: uplink.send(update),
        "copy": lambda: np.copyto(other, values),
        "transform": lambda: select("cpu").rotate_back(values, 3),
    }
    best = best_times(tasks, repeats)
    best |= best_times({"receive": lambda: uplink.receive(payloads)}, max(2, repeats // 3))
    print(
        f"d = {DIMENSION:,}, k = {K:,}, epsilon 4, one release, {len(payloads[0])} bytes a payload"
    )
    print(f"  x + randn_like(x)        {1e3 * best['noise']:9.2f} ms")
    print(
        f"  send                     {1e3 * best['send']:9.2f} ms   {best['send'] / best['noise']:.2f} of the noise's"
    )
    print(
        f"  receive {PAYLOADS:,} payloads  {best['receive']:9.3f} s    the inverse transform included"
    )
    ratio = best["transform"] / best["copy"]
    print(f"  transform of 2^20 float32 {1e3 * best['transform']:8.2f} ms   {ratio:.1f} copies")


def large() -> None:
    """D = 10^8: time and peak memory of one release and of a mean."""
    dimension = 10**8
    update = np.ones(dimension, dtype=np.float32)
    uplink = uplink_of(dimension)
    began = time.process_time()
    payload = uplink.send(update)
    sent = time.process_time() - began
    mean = uplink.receive([payload])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"d = {dimension:,}: send {sent:.2f} s, {len(payload)} bytes, peak {peak:.1f} GB with a mean of {mean.size:,}"
    )


def error(clients: int = 2000) -> None:
    """Squared error and bias at full size.

    A mean over clients has 1/clients of the error of one.
    """
    plain = np.random.default_rng(3)
    spiky = np.zeros(DIMENSION, dtype=np.float32)
    spiky[:3] = 0.8, -0.5, 0.33
    structured = np.sin(np.arange(DIMENSION) / 1e4).astype(np.float32)
    kinds = {
        "flat": np.ones(DIMENSION, np.float32)
        * plain.choice([-1, 1], DIMENSION).astype(np.float32),
        "spiky": spiky,
        "structured": structured,
    }
    uplink = uplink_of(DIMENSION)
    mechanism: Any = uplink.mechanism
    claim = mechanism.error().squared
    print(f"claimed squared error {claim:.4f} a coordinate and release; {clients:,} releases each")
    for norm in (0.0, 0.3, 1.0):
        for name, kind in kinds.items():
            if norm == 0 and name != "flat":
                continue
            update = (norm / float(np.linalg.norm(kind))) * kind
            mean = uplink.receive(uplink.send(update) for _ in range(clients))
            found = clients * float(np.square(mean - update).mean())
            expected = claim - (1 - norm**2) / K * (1 - K / SIZE)
            line = f"  norm {norm:3.1f} {name:10}  error / claim {found / expected:.4f}"
            if norm > 0:
                spread = (
                    math.sqrt(mechanism.profile.second_moment / clients)
                    / mechanism.profile.gain_lower
                    / norm
                )
                line += f"   response {float(mean @ update) / norm**2:.4f} +- {spread:.4f}"
            print(line)


def main() -> None:
    """Parse the arguments and run what they ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--large", action="store_true", help="d = 10^8 as well (about 2 GB)")
    parser.add_argument(
        "--error", action="store_true", help="error and bias at d = 10^6 (a minute)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speed(arguments.repeats)
    if arguments.error:
        error()
    if arguments.large:
        large()


if __name__ == "__main__":
    main()
