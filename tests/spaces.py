"""Random directions of a subspace, the same on every machine."""

import numpy as np

from quietbit.gradients.subspace import Subspace


def space_of_seed(seed, size, dimension):
    """Return directions of which no two share a number: a shuffle deals the numbers to them."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(dimension)
    signs = rng.choice([-1.0, 1.0], size=dimension)
    directions = np.zeros((size, dimension))
    for place in range(size):
        dealt = order[place::size]
        directions[place, dealt] = signs[dealt] / np.sqrt(dealt.size)
    return Subspace(directions)
