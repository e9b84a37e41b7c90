"""Everything a server and its colluders can say in sums of few clients: nobody is exposed beyond
what is claimed.

Idea     `lie_search` plays all lies against the real clients. It finds the three faults of earlier
         versions, put back one by one, and one more that would be as bad; it finds nothing in the
         clients as they are. With neighbours it is run for every graph, and the share of graphs in
         which some lie works is held against `exposure_upper`. `lying_server_campaign.py` runs more
         of it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import combinations, permutations, product
from unittest.mock import patch

import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from attack.lie_search import QUIET, TRUE, Search
from quietbit.secagg import plan as plan_module
from quietbit.secagg.client import SumClient
from quietbit.secagg.exposure import exposure_upper
from quietbit.secagg.plan import ProtocolError, SumPlan


def colluding(n: int, count: int) -> frozenset[int]:
    return frozenset(range(n - count + 1, n + 1))


@pytest.mark.parametrize(
    ("n", "t", "bad", "terms"),
    [
        (3, 3, 0, 2),
        (3, 3, 1, 2),
        (3, 3, 2, 1),
        (4, 4, 0, 2),
        (4, 4, 1, 2),
        (4, 3, 1, 1),
        (4, 3, 0, 1),
        (5, 5, 0, 1),
        (5, 4, 2, 1),
        (5, 5, 2, 2),
    ],
)
def test_all_with_all_no_lie_works(n: int, t: int, bad: int, terms: int) -> None:
    search = Search(n, t, colluding(n, bad), max(t - bad, 1), terms=(TRUE, QUIET)[:terms])
    assert search.run() is None
    print(
        f"n = {n}, t = {t}, C = {bad}: {search.asked} requests, {search.leaves} lies that were taken, 0 exposed"
    )
    assert search.leaves > 0


def test_beyond_the_colluders_that_are_allowed_the_search_finds_a_lie() -> None:
    """C = 2 t - n: two lists with enough signatures each; so the search can see what the
    threshold prevents.
    """
    assert Search(4, 3, colluding(4, 2), 1).run() is None
    assert Search(4, 3, colluding(4, 2), 2).run() is not None


def old_context(purpose: bytes, *parts: bytes) -> bytes:
    """The plan's digest without the terms, as it was."""
    return DIGEST(purpose, *(parts[:-1] if purpose == b"plan" else parts))


DIGEST = plan_module.digest_of


def test_it_finds_a_mechanism_that_is_not_bound() -> None:
    """Fault 1: one client is told the true mechanism, the others one without noise; no
    colluders, genuine lists.
    """
    with patch.object(plan_module, "digest_of", old_context):
        lie = Search(3, 3, frozenset(), 3, terms=(TRUE, QUIET)).run()
    assert lie is not None
    assert len(set(lie["terms"].values())) == 2
    assert Search(3, 3, frozenset(), 3, terms=(TRUE, QUIET)).run() is None


def believe(client: SumClient, roster: object) -> tuple[frozenset[int], frozenset[int]]:
    """Whom a client deals with, on the server's word, as it was."""
    mine, dealers = client._plan.near(client._number, roster.choices)
    if not set(roster.near) <= mine | dealers:
        raise ProtocolError("has clients that this one does not deal with")
    for other, one in roster.near.items():
        one.check(client._plan, other)
    return mine & set(roster.near), dealers & set(roster.near)


def test_it_finds_edges_that_are_hidden_at_both_ends() -> None:
    """Fault 2: one colluder, nobody gone, and a sum of fewer than the three honest clients is
    read.
    """
    graph = {1: frozenset({2, 4}), 2: frozenset({3, 4}), 3: frozenset({2, 4})}
    case = {"n": 4, "t": 4, "bad": colluding(4, 1), "honest": 3, "near": (2, 2), "graph": graph}
    with ExitStack() as stack:
        stack.enter_context(patch.object(SumClient, "_checked", believe))
        stack.enter_context(
            patch.object(SumPlan, "roster_digest", lambda plan, roster: plan.context)
        )
        lie = Search(**case).run()
    assert lie is not None
    assert Search(**case).run() is None


def test_it_finds_colluders_that_hold_enough_shares() -> None:
    """Fault 3: k = 3, s = 2, two colluders: 0 was claimed, and it takes no lie; now 1 is."""
    with patch.object(plan_module, "least_share_threshold", lambda _: 2):
        everybody = {i: frozenset(range(1, 5)) - {i} for i in range(1, 5)}
        lie = Search(4, 4, colluding(4, 2), 2, near=(3, 2), graph=everybody).run()
    assert lie is not None
    assert exposure_upper(4, 4, 3, 2, 2, 2) == 1.0


def test_it_finds_signatures_that_nobody_looks_at() -> None:
    """One mutant more, so that the search is known to put clients of its own in the place of
    others.
    """
    case = {"n": 3, "t": 3, "bad": frozenset(), "honest": 3}
    assert Search(**case).run() is None
    with patch("quietbit.secagg.codec.verified", lambda *_: True):
        assert Search(**case).run() is not None


def alike(graph: dict[int, frozenset[int]]) -> tuple[tuple[int, frozenset[int]], ...]:
    """One for all graphs that differ by the names of honest clients alone."""
    forms = []
    for names in permutations(graph):
        name = dict(zip(graph, names, strict=True))
        forms.append(
            sorted((name[i], sorted(name.get(j, j) for j in some)) for i, some in graph.items())
        )
    return tuple((i, frozenset(some)) for i, some in min(forms))


@pytest.mark.parametrize(
    ("t", "k", "s", "bad", "honest"),
    [(4, 2, 2, 1, 3), (4, 2, 2, 2, 2), (4, 2, 3, 1, 3), (4, 3, 3, 2, 2)],
)
def test_for_every_graph_of_four_lies_work_no_oftener_than_claimed(
    t: int, k: int, s: int, bad: int, honest: int
) -> None:
    """All choices of all honest clients, colluders choose as they like; every lie against each
    graph.
    """
    good = range(1, 5 - bad)
    sets = [
        [frozenset(some) for some in combinations(sorted(set(range(1, 5)) - {i}), k)] for i in good
    ]
    exposed = asked = lies = 0
    orbits = Counter(alike(dict(zip(good, choices, strict=True))) for choices in product(*sets))
    for graph, times in orbits.items():
        search = Search(4, t, colluding(4, bad), honest, near=(k, s), graph=dict(graph))
        exposed += times * (search.run() is not None)
        asked, lies = asked + search.asked, lies + search.leaves
    graphs = orbits.total()
    upper = exposure_upper(4, t, k, s, bad, honest)
    print(
        f"k = {k}, s = {s}, C = {bad}: {exposed} of {graphs} graphs, {asked} requests, {lies} lies; {upper:.3f}"
    )
    assert exposed / graphs <= upper
