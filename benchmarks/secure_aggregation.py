"""Secure aggregation of one-bit updates.

Tightness and time of the account, the comparison, and a masked round.

Idea     prints tables of (1) n kappa(n)/kappa(1) over orders 2 to 64, (2) seconds for a whole
         curve, conversion to epsilon included, (3) bits, epsilon and error against the
         alternatives, (4) codes of more bits, (5) time and bytes of masked rounds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

from quietbit.design.solve import closed_design
from quietbit.design.table import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.privacy.aggregate import AggregateConstant, aggregate_cost
from quietbit.secagg.client import SumClient
from quietbit.secagg.codec import write_evidence, write_inbox, write_roster, write_tables
from quietbit.secagg.identity import Identity, verified
from quietbit.secagg.plan import SumPlan, bits_for
from quietbit.secagg.server import SumServer
from quietbit.target import Adjacency, Target
from quietbit_lab.baseline.sum_rows import compare_sums

ORDERS = (2.0, 2.5, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def tightness() -> None:
    print(
        "| epsilon | clients | adjacency | worst n kappa(n)/kappa(1), orders 2-64 | s |\n|---|---|---|---|---|"
    )
    for epsilon in (0.25, 0.5, 1.0, 2.0):
        design = closed_design(DesignSpec(2, 1, epsilon))
        for clients in (10, 100, 1000, 100_000):
            for adjacency in Adjacency:
                start = time.perf_counter()
                constant = AggregateConstant(design, 0.0, 1.0, clients, adjacency)
                worst = max(clients * constant.upper(a) / (a * epsilon**2 / 2) for a in ORDERS)
                seconds = time.perf_counter() - start
                print(
                    f"| {epsilon} | {clients} | {adjacency.value} | {worst:.4f} | {seconds:.2f} |"
                )


def curves() -> None:
    print("\n| clients | releases | epsilon at delta 1e-5 | s |\n|---|---|---|---|")
    design = closed_design(DesignSpec(2, 1, 1.0))
    for clients, releases in ((1000, 100), (100_000, 10_000)):
        start = time.perf_counter()
        cost = aggregate_cost(design, 0.5, clients, Adjacency.ZERO_OUT) * releases
        epsilon = cost.epsilon(1e-5)
        print(f"| {clients} | {releases} | {epsilon:.4f} | {time.perf_counter() - start:.2f} |")


def comparison() -> None:
    print(
        "\n| clients | releases | mechanism | bits per parameter | epsilon | squared error of the mean |"
    )
    print("|---|---|---|---|---|---|")
    for clients, releases in ((100, 10), (1000, 1), (1000, 100), (10_000, 100)):
        ball = Ball(Norm.L2, 100_000)
        rows = compare_sums(
            ball=ball, target=Target(1.0, 1e-5, "zero-out", releases=releases), clients=clients
        )
        for row in rows:
            numbers = f"{row.bits} | {row.epsilon_upper:.4f} | {row.squared_error:.3e}"
            print(f"| {clients} | {releases} | {row.name} | {numbers} |")


@dataclass
class Spent:
    """What a round cost: seconds of a client that nobody else has verified anything for, of the server, and bytes."""

    client: float = 0.0
    server: float = 0.0
    up: float = 0.0
    down: float = 0.0


def masked_round(count: int, dimension: int, active: bool) -> Spent:
    """A round in which one client in twenty leaves before its vector is sent, and one in a hundred after."""
    people = {i: Identity.new() for i in range(1, count + 1)}
    members = tuple(one.public for one in people.values()) if active else None
    gone_count = count // 20
    threshold = max(count - max(gone_count + count // 100 + 1, 1), 2 * count // 3 + 1)
    plan = SumPlan(
        count,
        threshold,
        dimension,
        b"benchmark",
        members=members,
        terms=b"benchmark",
    )
    rng = np.random.default_rng(0)
    codes = {i: rng.integers(0, 2, dimension, dtype=np.uint32) for i in people}
    server, cost, clock = SumServer(plan), Spent(), time.process_time
    clients, times = {}, []
    start = clock()
    for i in people:
        clients[i] = SumClient(plan, i, people[i] if active else None)
    published = {i: client.advertise() for i, client in clients.items()}
    times.append((clock() - start) / count)
    start = clock()
    for i, advertised in published.items():
        server.take_keys(i, advertised.to_bytes())
    roster = server.roster()
    cost.server += clock() - start
    watched = sorted(people)[:: max(1, count // 8)]  # clients that verify everything themselves
    parts, spent = {}, []
    for i in people:
        if i in watched:
            verified.cache_clear()
        start = clock()
        parts[i] = clients[i].share(roster)
        if i in watched:
            spent.append(clock() - start)
    times.append(float(np.mean(spent)))
    start = clock()
    for i, dealt in parts.items():
        server.take_shares(i, write_tables(plan, dealt))
    inboxes = server.inboxes()
    cost.server += clock() - start
    gone = set(rng.choice(sorted(people), gone_count, replace=False).tolist())
    left = sorted(set(people) - gone)
    start = clock()
    vectors = {i: clients[i].mask(codes[i], inboxes, inboxes[i]) for i in left}
    times.append((clock() - start) / len(left))
    start = clock()
    for i, data in vectors.items():
        server.receive(i, data)
    u2 = server.arrived()
    cost.server += clock() - start
    proof: dict[int, bytes] = {}
    if active:
        signed = {i: clients[i].confirm(u2) for i in left}
        start = clock()
        for i, signature in signed.items():
            server.take_confirmation(i, signature)
        proof = server.confirmed()
        cost.server += clock() - start
    late = (
        set(left[:: len(left) // max(1, count // 100)][: count // 100]) if count >= 100 else set()
    )
    answers, spent, masked = {}, [], {i: server.masked(i) for i in left}
    for i in sorted(set(left) - late):
        if i in watched:
            verified.cache_clear()
        start = clock()
        answers[i] = clients[i].unmask(u2, proof, masked[i])
        if i in watched:
            spent.append(clock() - start)
    times.append(float(np.mean(spent)))
    start = clock()
    for i, answer in answers.items():
        server.take_unmasking(i, answer.to_bytes(plan))
    found = server.finish()
    cost.server += clock() - start
    if not (found.total == sum(codes[i] for i in found.clients)).all():
        raise RuntimeError("the masked sum is not the plain one")
    cost.client = sum(times)
    stay = sorted(answers)
    confirmation, list_size = (64, (count + 7) // 8) if active else (0, 0)
    up = [
        plan.advertisement_size + len(write_tables(plan, parts[i])) + len(vectors[i]) + confirmation
        for i in stay
    ]
    cost.up = float(np.mean(up) + np.mean([len(answers[i].to_bytes(plan)) for i in stay]))
    sent = len(write_roster(plan, roster))
    down = [sent + len(write_inbox(plan, inboxes, inboxes[i])) for i in stay]
    told = [len(write_evidence(plan, u2, proof, masked[i])) for i in stay]
    cost.down = float(np.mean(down) + np.mean(told) + (4 * count if active else 0) + list_size)
    return cost


def masked_rounds() -> None:
    """Against n, in both models of the server.

    Bytes are those of the protocol, the model's own not counted.
    """
    print("\n| clients | server | vector | up, bytes | down, bytes | a client, s | the server, s |")
    print("|---|---|---|---|---|---|---|")
    for count, dimension in (
        (10, 100_000),
        (30, 100_000),
        (100, 100_000),
        (300, 100_000),
        (1000, 100_000),
        (1000, 1024),
    ):
        for active in (False, True):
            cost = masked_round(count, dimension, active)
            model = "active" if active else "honest but curious"
            print(f"| {count} | {model} | {dimension} x {bits_for(count)} bits |", end="")
            print(
                f" {cost.up:,.0f} | {cost.down:,.0f} | {cost.client:.3f} | {cost.server:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["rounds"]:
        masked_rounds()
        sys.exit()
    tightness()
    curves()
    comparison()
    masked_rounds()
