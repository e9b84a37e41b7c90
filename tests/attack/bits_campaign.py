"""Look for a product of bits that tells neighbours apart better than the Gaussian pair that should
dominate it.

Random products (spreads, clamps, middles, adjacencies): their hockey-stick divergence is computed
exactly, at 12 epsilons each.
"""

import numpy as np

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


def campaign(cases, seed, *, share=1.0, epsilons=12, most=10):
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
