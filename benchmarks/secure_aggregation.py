"""Secure aggregation of one-bit updates: tightness and time of the account, the comparison, and a masked round.

Idea     prints tables of (1) n kappa(n)/kappa(1) over orders 2 to 64, (2) seconds for a whole curve, conversion to
         epsilon included, (3) bits, epsilon and error against the alternatives, (4) time and bytes of a masked round.
"""

from __future__ import annotations

import time

import numpy as np

from quietbit.design.solve import solve_anew
from quietbit.design.spec import DesignSpec
from quietbit.mechanism.central_sum import compare_sums
from quietbit.mechanism.clipping import Ball, Norm
from quietbit.privacy.aggregate import AggregateConstant, aggregate_curve
from quietbit.privacy.guarantee import Adjacency
from quietbit.secure.client import SumClient
from quietbit.secure.plan import SumPlan
from quietbit.secure.server import SumServer

ORDERS = (2.0, 2.5, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def tightness() -> None:
    print("| epsilon | clients | adjacency | worst n kappa(n)/kappa(1), orders 2-64 | s |\n|---|---|---|---|---|")
    for epsilon in (0.25, 0.5, 1.0, 2.0):
        design = solve_anew(DesignSpec(2, 1, epsilon))
        for clients in (10, 100, 1000, 100_000):
            for adjacency in Adjacency:
                start = time.perf_counter()
                constant = AggregateConstant(design, 0.0, 1.0, clients, adjacency)
                worst = max(clients * constant.upper(a) / (a * epsilon**2 / 2) for a in ORDERS)
                seconds = time.perf_counter() - start
                print(f"| {epsilon} | {clients} | {adjacency.value} | {worst:.4f} | {seconds:.2f} |")


def curves() -> None:
    print("\n| clients | releases | epsilon at delta 1e-5 | s |\n|---|---|---|---|")
    design = solve_anew(DesignSpec(2, 1, 1.0))
    for clients, releases in ((1000, 100), (100_000, 10_000)):
        start = time.perf_counter()
        curve = aggregate_curve(design, 0.5, clients, Adjacency.ZERO_OUT).repeat(releases)
        epsilon = curve.epsilon_upper(1e-5)
        print(f"| {clients} | {releases} | {epsilon:.4f} | {time.perf_counter() - start:.2f} |")


def comparison() -> None:
    print("\n| clients | releases | mechanism | bits per parameter | epsilon | squared error of the mean |")
    print("|---|---|---|---|---|---|")
    for clients, releases in ((100, 10), (1000, 1), (1000, 100), (10_000, 100)):
        ball = Ball(Norm.L2, 1.0, 100_000)
        rows = compare_sums(
            ball=ball, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, clients=clients, releases=releases
        )
        for row in rows:
            numbers = f"{row.bits} | {row.epsilon_upper:.4f} | {row.squared_error:.3e}"
            print(f"| {clients} | {releases} | {row.name} | {numbers} |")


def masked_round(count: int = 30, dimension: int = 100_000) -> None:
    plan = SumPlan(count, 2 * count // 3, dimension, b"benchmark")
    rng = np.random.default_rng(0)
    codes = {i: rng.integers(0, 2, dimension, dtype=np.uint32) for i in range(1, count + 1)}
    clients = {i: SumClient(plan, i) for i in codes}
    server = SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    start = time.perf_counter()
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    sharing = (time.perf_counter() - start) / count
    gone = set(range(1, 1 + count // 6))
    start = time.perf_counter()
    for i in sorted(set(codes) - gone):
        server.receive(i, clients[i].mask(codes[i], inboxes[i]))
    masking = (time.perf_counter() - start) / (count - len(gone))
    arrived = server.arrived()
    start = time.perf_counter()
    found = server.finish({i: clients[i].unmask(arrived) for i in sorted(arrived)})
    unmasking = time.perf_counter() - start
    assert (found.total == sum(codes[i] for i in found.clients)).all()
    print(f"\nmasked round, {count} clients, {len(gone)} gone, {dimension} coordinates of {plan.bits} bits:")
    print(f"{plan.payload_size} bytes a client; share {sharing:.3f} s and mask {masking:.3f} s a client, ", end="")
    print(f"unmask {unmasking:.2f} s at the server")


if __name__ == "__main__":
    tightness()
    curves()
    comparison()
    masked_round()
