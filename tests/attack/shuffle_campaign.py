"""Random attacks on the bounds of shuffling, longer than a test may take.

    python tests/attack/shuffle_campaign.py [SECONDS]

Idea     draw a randomiser with few outputs, two neighbours, what the others hold and what changes
         after every output; enumerate all orders and outputs; ask whether the exact delta is above
         the bound. The others are then moved, one by one, towards what makes the exact delta
         larger.
"""

from __future__ import annotations

import itertools
import math
import sys
import time

import numpy as np

from quietbit.target import Adjacency
from quietbit_lab.shuffle.amplification import clones, through_zero

SHARES = (0.02, 0.2, 0.5, 0.8)


def randomiser(
    generator: np.random.Generator, inputs: int, outputs: int, ratio: float
) -> np.ndarray:
    """Rows whose entries differ by less than ``ratio``, most of them by nearly as much."""
    base = generator.exponential(size=outputs) + 0.02
    rows = base * np.where(
        generator.random((inputs, outputs)) < generator.random(), ratio ** generator.random(), 1.0
    )
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def shuffled(tables: dict[int, np.ndarray], held: list[int], outputs: int) -> np.ndarray:
    """The law of all outputs in turn, the order uniform; the table in use depends on the sum of
    outputs so far.
    """
    crowd = len(held)
    law = np.zeros((outputs,) * crowd)
    for sequence in itertools.product(range(outputs), repeat=crowd):
        sums = np.concatenate([[0], np.cumsum(sequence)[:-1]])
        used = [tables[int(before) % len(tables)] for before in sums]
        chances = np.array(
            [[table[x, y] for table, y in zip(used, sequence, strict=True)] for x in held]
        )
        law[sequence] = permanent(chances) / math.factorial(crowd)
    return law


def permanent(matrix: np.ndarray) -> float:
    """The sum over all orders of the product of what each client does at its place."""
    size = matrix.shape[0]
    total = np.zeros(1 << size)
    total[0] = 1.0
    for mask in range(1, 1 << size):
        row = mask.bit_count() - 1
        total[mask] = sum(
            total[mask ^ (1 << k)] * matrix[k, row] for k in range(size) if mask >> k & 1
        )
    return float(total[-1])


def attack(generator: np.random.Generator) -> tuple[int, float]:
    """One randomiser: how many comparisons, and the largest exact delta relative to its bound."""
    crowd, outputs = int(generator.integers(2, 5)), int(generator.integers(2, 4))
    inputs, ratio = 4, float(np.exp(generator.uniform(0.2, 4.0)))
    tables = {
        k: randomiser(generator, inputs, outputs, ratio)
        for k in range(int(generator.integers(1, 4)))
    }
    every = np.stack(list(tables.values()))
    far = (
        math.nextafter(float(np.log((every[:, :, None] / every[:, None]).max())), math.inf) + 1e-12
    )
    near = math.nextafter(float(np.abs(np.log(every / every[:, :1])).max()), math.inf) + 1e-12
    bounds = {
        Adjacency.REPLACE_ONE: (
            far,
            [clones(far), through_zero(near, Adjacency.REPLACE_ONE)],
            (1, 2),
        ),
        Adjacency.ZERO_OUT: (near, [through_zero(near, Adjacency.ZERO_OUT)], (0, 1)),
    }
    others = [int(x) for x in generator.integers(inputs, size=crowd - 1)]
    count, worst = 0, 0.0
    for place in range(crowd - 1):
        best: tuple[float, int] | None = None
        for tried in range(inputs):
            others[place] = tried
            found = 0.0
            for local, pairs, (one, two) in bounds.values():
                first, second = (shuffled(tables, [x, *others], outputs) for x in (one, two))
                for share in SHARES:
                    epsilon = share * local
                    ways = ((first, second), (second, first))
                    exact = max(
                        float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ways
                    )
                    bound = min(pair.delta_upper(crowd, epsilon) for pair in pairs)
                    count += 1
                    if exact > bound * (1 + 1e-9) + 1e-13:
                        raise SystemExit(
                            f"The bound is broken: {exact} > {bound}, {tables}, {others}, {epsilon}"
                        )
                    found = max(found, exact / bound if exact > 1e-9 else 0.0)
            best = max(best, (found, tried)) if best is not None else (found, tried)
        others[place] = best[1] if best is not None else others[place]
        worst = max(worst, best[0] if best is not None else 0.0)
    return count, worst


def main(seconds: float) -> None:
    """As many attacks as fit, from seed 0 on."""
    until, seed, count, worst = time.monotonic() + seconds, 0, 0, 0.0
    while time.monotonic() < until:
        more, reached = attack(np.random.default_rng(seed))
        seed, count, worst = seed + 1, count + more, max(worst, reached)
    print(
        f"{seed} randomisers, {count} comparisons: the largest exact delta is {worst:.4f} of its bound."
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
