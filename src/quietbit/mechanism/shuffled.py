"""What a mechanism's release costs among many, against those who do not know whose it is.

Idea     any mechanism that is private at delta = 0 has clones; one that knows more of itself says so by
         `blanket`, and the better of both answers. Everybody else is refused, with the reason.
Source   docs/theory/shuffling.md.
"""

from __future__ import annotations

from quietbit.mechanism.base import Mechanism
from quietbit.privacy.cost import Cost
from quietbit.privacy.shuffle import shuffled_cost
from quietbit.target import Adjacency, Trust, Unit, as_adjacency

__all__ = ["shuffled_privacy"]


def shuffled_privacy(mechanism: Mechanism, adjacency: Adjacency, crowd: int) -> Cost:
    """Return what one release costs a client against observers of a shuffle of ``crowd`` clients, one release each.

    The head of `quietbit.privacy.shuffle` says what must hold. Mechanisms without a guarantee at delta = 0 are refused.
    """
    which = as_adjacency(adjacency)
    curve = shuffled_cost(
        which,
        crowd,
        replace_one=mechanism.privacy(Adjacency.REPLACE_ONE),
        zero_out=mechanism.privacy(Adjacency.ZERO_OUT),
        own=mechanism.blanket(which),
    )
    return curve.of(which, Unit.CLIENT, Trust.SHUFFLED)
