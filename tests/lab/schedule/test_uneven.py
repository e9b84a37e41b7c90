"""An uneven federation in the simulator: Zipf's frequencies, accounts of single clients, and
memory.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from federation.simulate.makers import Flat
from quietbit.federation.simulate import Training, simulate
from quietbit_lab.schedule import ZIPF, ScheduledPlan

GIVEN: dict[str, Any] = {"clip": 1.0, "adjacency": "zero-out", "rng": "seeded", "seed": 3}


def run(nodes: int, rounds: int = 20) -> Any:
    plan = ScheduledPlan("vmvu", **GIVEN, epsilon=8.0, releases=3, cohort=100, participation=ZIPF)
    return simulate(Flat(nodes), plan, Training(lr=0.3, rounds=rounds, momentum=0.0))


def test_everybody_stays_within_the_budget_and_pays_for_its_own_releases() -> None:
    found = run(2000)
    assert (found.status, found.rounds) == ("finished", 20)
    counts = found.account.counts
    assert (counts.sum(), counts.max(), counts.min()) == (20 * 100, 3, 0)
    paid = [found.account.cost(int(np.argmax(counts == times))).epsilon(1e-5) for times in range(4)]
    assert paid[0] == 0 < paid[1] < paid[2] < paid[3] <= 8.0
    assert found.guarantee.epsilon_upper == paid[3]
    assert found.spread.startswith("fewest 0 (epsilon 0), median ")
    assert found.spread.endswith(f"most 3 (epsilon {paid[3]:.4g})")
    assert found.points[-1].score.loss < 1.0  # it learns


def test_a_run_ends_where_nobody_may_release_any_more() -> None:
    found = run(600)
    assert (found.status, found.rounds) == ("refused", 17)
    assert "may still release in round 18" in found.reason
    assert found.account.counts.max() == 3


def test_memory_grows_by_some_bytes_per_node() -> None:
    """What is kept of a node are counts; 200 bytes include what a draw takes for a moment."""
    run(500, rounds=3)
    peaks = []
    for nodes in (1_000, 4_000):
        tracemalloc.start()
        run(nodes, rounds=3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 3_000 < 200
