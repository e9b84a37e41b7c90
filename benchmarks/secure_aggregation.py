"""Secure aggregation of one-bit updates: tightness and time of the account, the comparison, and a masked round.

Idea     prints tables of (1) n kappa(n)/kappa(1) over orders 2 to 64, (2) seconds for a whole curve, conversion to
         epsilon included, (3) bits, epsilon and error against the alternatives, (4) codes of more bits, (5) secret
         cohorts, (6) time and bytes of masked rounds.
"""

from __future__ import annotations

import time

import numpy as np

from quietbit.design.solve import solve_anew
from quietbit.design.spec import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.sum_comparison import compare_sums
from quietbit.privacy.aggregate import AggregateConstant, aggregate_curve
from quietbit.privacy.guarantee import Adjacency
from quietbit.secagg.client import SumClient
from quietbit.secagg.plan import SumPlan, neighbours_for
from quietbit.secagg.server import SumServer

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


def more_bits() -> None:
    print("\n| clients | bits of a code | bits on the wire | squared error of the mean | clamped at |")
    print("|---|---|---|---|---|")
    ball = Ball(Norm.L2, 1.0, 100_000)
    for bits in (1, 2, 3, 4):
        found = calibrate_sum(
            ball=ball, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT, clients=1000, releases=10, bits=bits
        )
        print(f"| 1000 | {bits} | {found.wire_bits} | {found.squared_error:.3e} | {found.clamped_at:.3f} |")


def secret_cohorts() -> None:
    print("\n| clients of a sum | drawn from | sums | adjacency | squared error of the mean |\n|---|---|---|---|---|")
    ball = Ball(Norm.L2, 1.0, 100_000)
    for adjacency in Adjacency:
        for population in (None, 10_000, 100_000):
            found = calibrate_sum(
                ball=ball,
                epsilon=1.0,
                delta=1e-5,
                adjacency=adjacency,
                clients=1000,
                releases=100,
                population=population,
            )
            drawn = "not secret" if population is None else f"{population}"
            print(f"| 1000 | {drawn} | 100 | {adjacency.value} | {found.squared_error:.3e} |")


def masked_round(count: int, dimension: int, near: tuple[int, int] | None) -> None:
    plan = SumPlan(count, 17 * count // 20, dimension, b"benchmark", 1, *(near or (None, None)))
    rng = np.random.default_rng(0)
    codes = {i: rng.integers(0, 2, dimension, dtype=np.uint32) for i in range(1, count + 1)}
    clients = {i: SumClient(plan, i) for i in codes}
    server = SumServer(plan)
    published = server.keys({i: client.advertise() for i, client in clients.items()})
    start = time.process_time()
    inboxes = server.shares_for({i: client.share(published) for i, client in clients.items()})
    sharing = (time.process_time() - start) / count
    gone = set(rng.choice(np.arange(1, count + 1), count // 20, replace=False).tolist())
    start = time.process_time()
    vectors = {i: clients[i].mask(codes[i], inboxes[i]) for i in sorted(set(codes) - gone)}
    masking = (time.process_time() - start) / len(vectors)
    start = time.process_time()
    for i, data in vectors.items():
        server.receive(i, data)
    arrived = server.arrived()
    late = set(sorted(arrived)[:: max(1, len(arrived) // (count // 100 + 1))])
    found = server.finish({i: clients[i].unmask(arrived) for i in sorted(arrived - late)})
    adding = time.process_time() - start
    assert (found.total == sum(codes[i] for i in found.clients)).all()
    pairs = "all pairs" if near is None else f"{near[0]} neighbours"
    print(
        f"| {count} | {pairs} | {len(gone)} + {len(late)} | {dimension} x {plan.bits} bits | {plan.uplink_size} |",
        end="",
    )
    print(f" {1000 * sharing:.1f} | {1000 * masking:.1f} | {adding:.2f} |")


def masked_rounds() -> None:
    print("\n| clients | masks | gone + late | vector | bytes a client | share, ms | mask, ms | server, s |")
    print("|---|---|---|---|---|---|---|---|")
    masked_round(30, 100_000, None)
    masked_round(100, 39_700, None)
    masked_round(1000, 39_700, neighbours_for(1000, 50, 60))


if __name__ == "__main__":
    tightness()
    curves()
    comparison()
    more_bits()
    secret_cohorts()
    masked_rounds()
