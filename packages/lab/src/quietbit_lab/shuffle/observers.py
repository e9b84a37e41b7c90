"""The second guarantee of a finished run: against those who see its models alone.

Idea     a model is computed from a mean, so a release is one of those that arrived in its round,
         and whoever sees the models alone does not know which. The guarantee against the server
         does not change.
Symbols  crowd: the releases that arrived in a round, without those of clients that would tell; n:
         clients asked in the first round, known before its first output; T: rounds that count;
         n_j = n 2^(-j/4): a level.
Source   packages/lab/docs/shuffling.md: why accounts are fixed before the first output, one for
         every T, level j of all rounds but the last and level i of the last, with the share 1 / (T
         (T+1) (j+1) (j+2) (i+1) (i+2)) of delta. Hypotheses: whether a client answers depends on no
         data, and all updates weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quietbit.errors import check_int, require
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.vector import VectorMVU
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Guarantee
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.shuffle.amplification import shuffled_cost
from quietbit_lab.shuffle.profile import vector_blanket

__all__ = ["against_observers", "level", "shuffled_privacy"]

STEPS = 4  # levels per power of two


def shuffled_privacy(mechanism: Mechanism, adjacency: Adjacency, crowd: int) -> Cost:
    """Return the cost of one release to a client, seen among the shuffled releases of ``crowd``.

    Every client makes one release. A mechanism that is not private at delta = 0 is refused;
    `quietbit_lab.shuffle.amplification` lists the assumptions.
    """
    neighbours = Adjacency(adjacency)
    blanket = None
    if isinstance(mechanism, VectorMVU):
        blanket = vector_blanket(mechanism, neighbours)
    cost = shuffled_cost(
        neighbours,
        crowd,
        replace_one=mechanism.privacy(Adjacency.REPLACE_ONE),
        zero_out=mechanism.privacy(Adjacency.ZERO_OUT),
        own=blanket,
    )
    return cost.of(neighbours, Unit.CLIENT, Trust.SHUFFLED)


def level(first: int, crowd: int) -> tuple[int, int]:
    """Return the first level that a crowd reaches, and how many clients it stands for.

    >>> [level(1000, crowd) for crowd in (2000, 1000, 999, 600, 10)]
    [(0, 1000), (0, 1000), (1, 840), (3, 594), (27, 9)]
    """
    place = max(0, math.floor(STEPS * math.log2(first / crowd)) - 1)
    while (size := math.floor(first * 2.0 ** (-place / STEPS))) > crowd:
        place += 1
    return place, size


def against_observers(
    server: Guarantee, mechanism: Mechanism, asked: int, crowds: Sequence[int], releases: int
) -> Guarantee:
    """Return the guarantee of a client against those who see the models of a run alone.

    Args:
        server: the guarantee against the server, of clients under local trust.
        mechanism: of every release.
        asked: clients asked in the first round.
        crowds: how many releases arrived in each round; the client's are counted as those of the
            smallest rounds.
        releases: of the client.
    """
    trust = server.trust
    require(trust is Trust.LOCAL, "trust", trust.value, "local: sums have an account of their own")
    require(server.unit is Unit.CLIENT, "unit", server.unit.value, "client, who is hidden")
    first = check_int(asked, "asked", 1)
    count = check_int(releases, "releases", 1)
    known = sorted(crowd for crowd in crowds if check_int(crowd, "crowd", 0))[:count]
    require(known, "crowds", list(crowds), "a round in which a release arrived")
    *before, last = known
    place_before, size_before = level(first, min(before, default=first))
    place_last, size_last = level(first, last)
    places = (len(known), place_before + 1, place_last + 1)
    share = server.delta / math.prod(place * (place + 1) for place in places)
    account = Account(Target(math.inf, share, server.adjacency, trust=Trust.SHUFFLED))
    if before:
        cost = shuffled_privacy(mechanism, server.adjacency, size_before)
        account = account.spend(cost, len(before))
    account = account.spend(shuffled_privacy(mechanism, server.adjacency, size_last))
    return Guarantee(account.epsilon(), server.delta, Unit.CLIENT, server.adjacency, Trust.SHUFFLED)
