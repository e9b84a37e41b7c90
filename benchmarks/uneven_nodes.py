"""An uneven federation: nodes that come with Zipf's frequencies and drop out.

Memory, times, and prices per node.

Run:  python benchmarks/uneven_nodes.py [--nodes 10000 100000 1000000] [--rounds 100] [--cohort
1000] [--out FILE] Every number of nodes runs in a process of its own, so that its largest memory is
its own. The node of rank r takes part with a frequency proportional to 1/r, as often as its budget
allows: after that it declines, and a tenth of all requests gets no answer but is charged. Updates
are made as they are asked for, sent by `Uplink.send` and added by the server's own aggregator; who
has released how often is all that is kept of a node (`ClientCosts`). The error of every round's
mean is held against what the mechanism states.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from quietbit import Ball, Norm, Uplink, calibrate
from quietbit.federation.costs import ClientCosts
from quietbit_lab.schedule import Uneven

DIMENSION, RELEASES, EPSILON, DELTA, DROPPED = 1024, 10, 8.0, 1e-5, 0.1


def measure(nodes: int, rounds: int, cohort: int) -> dict[str, Any]:
    """Run one federation."""
    ball = Ball(Norm.L2, DIMENSION)
    target: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "adjacency": "zero-out",
        "releases": RELEASES,
    }
    mechanism = calibrate("vmvu", ball=ball, **target).mechanism
    uplink, rng = Uplink(mechanism), np.random.default_rng(1)
    account = ClientCosts(
        lambda _: mechanism.privacy(target["adjacency"]), np.ones(nodes, dtype=np.int64)
    )
    uplink.receive(
        [uplink.send(np.zeros(DIMENSION, dtype=np.float32))]
    )  # what is compiled, is compiled now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    base, added, sent, errors, answered = rng.normal(size=DIMENSION) / 64, 0.0, 0.0, [], 0
    schedule = Uneven(nodes, cohort, seed=1, most=RELEASES)
    for number in range(rounds):
        asked = schedule.cohort(number)
        account.record(asked)
        there = asked[rng.random(asked.size) >= DROPPED]
        mean, aggregator = np.zeros(DIMENSION), uplink.aggregator()
        for node in there.tolist():
            own = (
                np.random.default_rng(node).normal(size=DIMENSION) / 64 + base
            )  # what a node has is its own
            own = own * min(1.0, 0.999 / float(np.linalg.norm(own)))
            mean += own / there.size
            began = time.process_time()
            payload = uplink.send(own.astype(np.float32))
            middle = time.process_time()
            aggregator.add(payload)
            sent, added = sent + middle - began, added + time.process_time() - middle
        began = time.process_time()
        found = aggregator.mean()
        added, answered = added + time.process_time() - began, answered + there.size
        stated = mechanism.error().squared * DIMENSION / there.size
        errors.append(float(((found - mean) ** 2).sum()) / stated)
    counts = np.bincount(account.counts, minlength=RELEASES + 1)
    prices = {
        str(times): [int(many), _epsilon(mechanism, times)]
        for times, many in enumerate(counts)
        if many
    }
    return {
        "nodes": nodes,
        "rounds": rounds,
        "cohort": cohort,
        "releases": answered,
        "server_us_per_payload": round(1e6 * added / answered, 1),
        "client_us_per_payload": round(1e6 * sent / answered, 1),
        "grown_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        "squared_error_over_stated": [
            round(float(np.mean(errors)), 3),
            round(float(np.std(errors)), 3),
        ],
        "worst_epsilon": account.worst(DELTA).epsilon_upper,
        "spread": account.spread(DELTA),
        "nodes_and_epsilon_by_releases": prices,
    }


def _epsilon(mechanism: Any, times: int) -> float:
    return float((mechanism.privacy("zero-out") * times).epsilon(DELTA)) if times else 0.0


def main() -> None:
    """Measure every number of nodes in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if len(given.nodes) == 1 and given.out is None:
        print(json.dumps(measure(given.nodes[0], given.rounds, given.cohort)))
        return
    rows = []
    for nodes in given.nodes:
        own = [
            __file__,
            "--nodes",
            str(nodes),
            "--rounds",
            str(given.rounds),
            "--cohort",
            str(given.cohort),
        ]
        done = subprocess.run([sys.executable, *own], capture_output=True, text=True, check=True)  # noqa: S603
        rows.append(json.loads(done.stdout))
        print(
            {
                key: value
                for key, value in rows[-1].items()
                if key != "nodes_and_epsilon_by_releases"
            },
            flush=True,
        )
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
