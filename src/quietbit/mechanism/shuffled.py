"""The cost of a release among many, against observers who do not know which client sent which.

Idea     every mechanism that is private at delta = 0 has clones; one with a sharper bound gives it by `blanket`. The
         better of the two counts. Other mechanisms are refused, with the reason.
Source   docs/theory/shuffling.md.
"""

from __future__ import annotations

from quietbit.mechanism.base import Mechanism
from quietbit.privacy.cost import Cost
from quietbit.privacy.shuffle import shuffled_cost
from quietbit.target import Adjacency, Trust, Unit

__all__ = ["shuffled_privacy"]


def shuffled_privacy(mechanism: Mechanism, adjacency: Adjacency, crowd: int) -> Cost:
    """Return the cost of one release to a client, for observers of a shuffle of ``crowd`` clients, one release each.

    The header of `quietbit.privacy.shuffle` lists the assumptions. A mechanism without a pure guarantee is refused.
    """
    which = Adjacency(adjacency)
    curve = shuffled_cost(
        which,
        crowd,
        replace_one=mechanism.privacy(Adjacency.REPLACE_ONE),
        zero_out=mechanism.privacy(Adjacency.ZERO_OUT),
        own=mechanism.blanket(which),
    )
    return curve.of(which, Unit.CLIENT, Trust.SHUFFLED)
