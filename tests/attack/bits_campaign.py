"""Look for a product of bits that tells neighbours apart better than the Gaussian pair that should
dominate it.

Run it by hand: ``python tests/attack/bits_campaign.py 20000 7`` draws 20,000 random products
(spreads, clamps, middles, adjacencies) with seed 7, computes their hockey-stick divergence exactly
at 12 epsilons each, and prints every violation and how close the nearest case came. The exit status
is 1 if there was one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from core.exact.bits_kit import (
    exact_excess,
    gaussian_excess,
    group_atoms,
    probing_epsilons,
    random_case,
)
from quietbit.privacy.interpolated import dominating_square_upper

# of the enumeration in doubles: logarithms of binomials of up to 400, exponents of up to 700
ROUNDING = 1e-10


def campaign(
    cases: int, seed: int, *, share: float = 1.0, epsilons: int = 12, most: int = 10
) -> tuple[int, float]:
    """Violations, and the least 1 - exact/bound over all cases.

    ``share`` multiplies what the theorem adds to the budget: at 0 the search must find violations.
    """
    rng = np.random.default_rng(seed)
    violations, closest = 0, np.inf
    for _ in range(cases):
        counts, upper, lower, budget, largest = random_case(rng, most)
        square = budget + share * (dominating_square_upper(budget, largest, one_bit=True) - budget)
        mass, loss = group_atoms(counts, upper, lower)
        epsilon = probing_epsilons(rng, square, loss, epsilons)
        exact, bound = exact_excess(mass, loss, epsilon), gaussian_excess(epsilon, square)
        gap = 1 - exact / np.maximum(bound, 1e-300)
        violations += int((gap < -ROUNDING).any())
        unsure = bound < 0.99 * np.exp(np.minimum(epsilon, 0.0))  # two certainties are always close
        closest = min(closest, float(gap[unsure].min(initial=np.inf)))
    return violations, closest


if __name__ == "__main__":
    asked, chosen = (int(word) for word in (sys.argv[1:] + ["20000", "7"][len(sys.argv) - 1 :]))
    found, nearest = campaign(asked, chosen)
    print(
        f"{asked} products, seed {chosen}: {found} violations; nearest relative distance {nearest:.3g}"
    )
    sys.exit(found > 0)
