"""The field at one guarantee: error, bytes, client and server time of the library's mechanisms and of baselines.

Idea     every mechanism is calibrated to the same (epsilon, delta) and number of releases by the
         same ledger, sends the same update through the same uplink, and is decoded by the same
         server. Sums are compared among themselves: their codes are made and added, the masks are
         not.
Rows     error: squared error per coordinate of one release (of the mean, for sums); relative: over
         that of Gaussian noise with its exact account, or of the ideal distributed Gaussian;
         measured: over what the mechanism claims, mean of `--samples` releases; bytes: payload with
         its header; bits: of a code in a masked sum; client, server: processor time of one thread
         per update, medians.

    OMP_NUM_THREADS=1 python benchmarks/field.py [--quick] [--out FILE.json] OMP_NUM_THREADS=1
    python benchmarks/field.py --audit      # the auditor on every baseline, 1,000 releases each
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit import (
    Adjacency,
    Ball,
    InvalidParameter,
    Norm,
    Uplink,
    calibrate,
    seeded_rng,
)
from quietbit.mechanism.ball import usual_kernel
from quietbit.mechanism.registry import families, family
from quietbit.target import Target
from quietbit_lab.auditor.audit import audit
from quietbit_lab.baseline.cpsgd import calibrate_cpsgd
from quietbit_lab.baseline.discrete_gaussian import calibrate_discrete_gaussian
from quietbit_lab.baseline.poisson_binomial import calibrate_poisson_binomial
from quietbit_lab.baseline.ppr import calibrate_ppr
from quietbit_lab.baseline.sum_rows import compare_sums

LOCAL = (
    "gaussian",
    "skellam",
    "imvu",
    "vmvu",
    "privunit",
    "privunit-g",
    "rrsc",
    "mmrc",
    "sqkr",
    "dp-rec",
)
POINTED = ("laplace", "imvu", "cldp", "staircase")
Row = dict[str, Any]


def timed(task: Callable[[], Any], repeats: int) -> float:
    """The median processor time of a task, in seconds, after one run that warms up."""
    task()
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        task()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def filling(ball: Ball) -> NDArray[Any]:
    """A random update on the boundary of the ball."""
    drawn = np.random.default_rng(0).normal(size=ball.dimension)
    return ball.clip(drawn * (10 / np.linalg.norm(drawn, ord=ball.norm.order)))


def local_row(word: str, ball: Ball, target: dict[str, Any], samples: int) -> Row:
    """One mechanism, calibrated, sent, received and measured."""
    try:
        found = calibrate(word, ball=ball, **target)
    except InvalidParameter as error:
        return {"name": word, "refused": str(error)}
    uplink = Uplink(found.mechanism)
    update = filling(ball)
    rng = seeded_rng(1)
    sent = [uplink.send(update, rng) for _ in range(samples)]
    errors = [float(np.mean((np.asarray(uplink.receive([one])) - update) ** 2)) for one in sent]
    law = found.mechanism
    claimed = np.mean(
        [law.variance(v) + (law.expectation(v) - v) ** 2 for v in update.astype(float).tolist()]
    )
    batch = sent[: min(50, samples)]
    return {
        "name": word,
        "epsilon": found.guarantee.epsilon_upper,
        "squared_error": found.squared_error,
        "relative": found.squared_error / found.gaussian_squared_error if target["delta"] else None,
        "measured": float(np.mean(errors) / claimed),
        "bytes": len(sent[0]),
        "client_seconds": timed(lambda: uplink.send(update, rng), 9),
        "server_seconds": timed(lambda: uplink.receive(batch), 3) / len(batch),
    }


def ppr_row(ball: Ball, target: dict[str, Any], gaussian: float) -> Row:
    """The account, error and bits of PPR; nothing is sent."""
    found = calibrate_ppr(ball, Target(**target))
    guarantee = (found.privacy(target["adjacency"]) * target["releases"]).epsilon(target["delta"])
    error = found.error().squared
    return {
        "name": "ppr",
        "epsilon": guarantee,
        "squared_error": error,
        "relative": error / gaussian,
        "bytes": -(-int(found.bits_upper() + 1) // 8),
    }


def sum_rows(ball: Ball, target: dict[str, Any], clients: int) -> list[Row]:
    """Mechanisms for sums: the ideal, Skellam (its account alone), one bit, and the baselines."""
    sums = compare_sums(ball=ball, clients=clients, target=Target(**target))
    ideal, skellam = (
        next(row for row in sums if row.name.startswith(word)) for word in ("ideal", "Skellam")
    )
    rows: list[Row] = [
        {
            "name": row.name,
            "epsilon": row.epsilon_upper,
            "squared_error": row.squared_error,
            "wire_bits": row.bits,
            "relative": row.squared_error / ideal.squared_error,
        }
        for row in (ideal, skellam)
    ]
    update = filling(ball)
    rng, kernel = seeded_rng(2), usual_kernel()
    own = calibrate("imvu", ball=ball, honest=clients, **target)
    uplink = Uplink(own.mechanism)
    rows.append(
        {
            "name": "imvu, one bit",
            "epsilon": own.guarantee.epsilon_upper,
            "squared_error": own.error.of_mean(clients),
            "wire_bits": clients.bit_length(),
            "relative": own.error.of_mean(clients) / ideal.squared_error,
            "client_seconds": timed(lambda: uplink.send(update, rng), 9),
        }
    )
    makers: dict[str, Callable[..., Any]] = {
        "poisson binomial": calibrate_poisson_binomial,
        "discrete gaussian": calibrate_discrete_gaussian,
        "cpsgd": calibrate_cpsgd,
    }
    for name, maker in makers.items():
        try:
            found = maker(ball, Target(**target), clients)
        except InvalidParameter as error:
            rows.append({"name": name, "refused": str(error)})
            continue
        codes = [found.encode([update], rng, kernel) for _ in range(min(clients, 50))]
        total = sum(
            codes[i % len(codes)] for i in range(clients)
        )  # as large as a real sum; its error is not measured
        release = found.sum_privacy(target["adjacency"]) * target["releases"]
        rows.append(
            {
                "name": name,
                "epsilon": release.epsilon(target["delta"]),
                "squared_error": found.squared_error,
                "wire_bits": found.wire_bits,
                "relative": found.squared_error / ideal.squared_error,
                "client_seconds": timed(partial(found.encode, [update], rng, kernel), 5),
                "server_seconds": timed(partial(found.mean_from_sum, np.asarray(total)), 5)
                / clients,
            }
        )
    return rows


def show(title: str, rows: list[Row]) -> None:
    """One table."""
    print(f"\n{title}")
    heads = ("error", "relative", "measured", "bytes", "bits", "client us", "server us", "epsilon")
    print(f"{'':28}" + "".join(f"{head:>11}" for head in heads))
    for row in rows:
        if "refused" in row:
            print(f"{row['name']:28} refused: {row['refused']}")
            continue
        numbers = (
            row["squared_error"],
            row.get("relative"),
            row.get("measured"),
            row.get("bytes"),
            row.get("wire_bits"),
            _micro(row.get("client_seconds")),
            _micro(row.get("server_seconds")),
            row["epsilon"],
        )
        print(
            f"{row['name']:28}"
            + "".join(f"{'-' if one is None else format(one, '.4g'):>11}" for one in numbers)
        )


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else 1e6 * seconds


def audit_all(samples: int) -> None:
    """The auditor on every baseline of the registry, at a dimension that is no power of two."""
    for word in families():
        if not family(word).baseline:
            continue
        for norm in (Norm.L2, Norm.L1):
            try:
                found = calibrate(
                    word, ball=Ball(norm, 100), epsilon=2.0, delta=0.0, adjacency="replace-one"
                )
            except InvalidParameter:
                continue
            said = audit(
                found.mechanism,
                Adjacency.REPLACE_ONE,
                rng=seeded_rng(3),
                samples=samples,
                delta=0.0,
                confidence=1 - 1e-9,
            )
            span = f"at least {said.epsilon_lower:.3f} of {said.epsilon_upper:.3f}"
            print(f"{word:12} {norm.value} {said.verdict:14} {span}")


def main() -> None:
    """Every table, and a file of all numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=1000, help="in a secure sum")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="one target of each kind")
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.audit:
        audit_all(1000)
        return
    size, near, far = chosen.dimension, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
    tables: list[dict[str, Any]] = []

    def table(title: str, rows: list[Row]) -> None:
        show(title, rows)
        tables.append({"title": title, "rows": rows})
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(
                json.dumps({"dimension": size, "tables": tables}, indent=1) + "\n", encoding="utf-8"
            )

    ball = Ball(Norm.L2, size)
    for epsilon, releases in (
        ((4.0, 1),) if chosen.quick else ((1.0, 1), (4.0, 1), (8.0, 1), (8.0, 10), (8.0, 50))
    ):
        target = {"epsilon": epsilon, "delta": 1e-5, "adjacency": far, "releases": releases}
        rows = [local_row(word, ball, target, chosen.samples) for word in LOCAL]
        rows.append(ppr_row(ball, target, float(rows[0]["squared_error"])))
        table(
            f"local, L2, d = {size:,}, epsilon {epsilon:g}, delta 1e-5, replace-one, {releases} release(s)",
            rows,
        )
    for epsilon, few in ((4.0, 1), (4.0, size)):
        pointed = Ball(Norm.L1, few)
        target = {"epsilon": epsilon, "delta": 0.0, "adjacency": far, "releases": 1}
        rows = [local_row(word, pointed, target, chosen.samples) for word in POINTED]
        table(
            f"local, L1, d = {few:,}, epsilon {epsilon:g}, delta 0, replace-one, one release", rows
        )
    for releases in (1,) if chosen.quick else (1, 10):
        target = {"epsilon": 1.0, "delta": 1e-5, "adjacency": near, "releases": releases}
        title = f"sums of {chosen.clients:,} clients, d = {size:,}, epsilon 1, delta 1e-5, zero-out, {releases} release(s)"
        table(title, sum_rows(ball, target, chosen.clients))


if __name__ == "__main__":
    main()
