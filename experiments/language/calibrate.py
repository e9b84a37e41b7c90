"""Calibrate every mechanism that the lines need, once, and keep them with their errors for `run.py`.

python experiments/language/calibrate.py mechanisms.pkl
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from quietbit import Ball, calibrate

DELTA = 1e-5
DIMENSIONS = (17_280, 35_136, 92_160, 16, 32, 64)
SUMMED = (17_280, 35_136, 92_160, 1024, 4096)
COHORTS = (53, 106)
EPSILONS = (1.0, 4.0, 8.0)


def main() -> None:
    """Write (mechanism, epsilon, squared error) by kind, dimension and epsilon.

    Of sums also by cohort.
    """
    known: dict[Any, Any] = {}
    for epsilon in EPSILONS:
        target = {"epsilon": epsilon, "delta": DELTA, "releases": 1, "adjacency": "zero-out"}
        for dimension in DIMENSIONS:
            for kind in ("vmvu", "gaussian"):
                ball = Ball("l2", dimension)
                single = calibrate(kind, ball=ball, **target)
                row = (single.mechanism, single.guarantee.epsilon_upper, single.error.squared)
                known[kind, dimension, epsilon] = row
        for dimension in SUMMED:
            for cohort in COHORTS:
                ball = Ball("l2", dimension)
                summed = calibrate("imvu", ball=ball, honest=cohort, **target)
                squared = summed.error.of_mean(cohort)
                row = (summed.mechanism, summed.guarantee.epsilon_upper, squared)
                known["sum", dimension, epsilon, cohort, None] = row
    Path(sys.argv[1]).write_bytes(pickle.dumps(known))
    print(f"{len(known)} mechanisms")


if __name__ == "__main__":
    main()
