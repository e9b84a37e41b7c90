"""Everything a server and its colluders can say in sums of few clients: nobody is exposed beyond
what is claimed.

Idea     `lie_search` plays all lies against the real clients. It finds a fault of an earlier version
         that is put back, and more that would be as bad; it finds nothing in the clients as they
         are. Every night it searches larger sums: up to 555,670 requests in one.
"""

from unittest.mock import patch

import pytest

pytest.importorskip("cryptography", reason="needs the all extra")

from attack.lie_search import QUIET, TRUE, Search
from quietbit.secagg import plan as plan_module


def colluding(n, count):
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
        pytest.param(5, 4, 1, 1, marks=pytest.mark.long),
        pytest.param(5, 4, 0, 1, marks=pytest.mark.long),
        pytest.param(5, 5, 1, 2, marks=pytest.mark.long),
        pytest.param(4, 3, 1, 2, marks=pytest.mark.long),
        pytest.param(4, 3, 0, 2, marks=pytest.mark.long),
    ],
)
def test_all_with_all_no_lie_works(n, t, bad, terms):
    search = Search(n, t, colluding(n, bad), max(t - bad, 1), terms=(TRUE, QUIET)[:terms])
    assert search.run() is None
    print(
        f"n = {n}, t = {t}, C = {bad}: {search.asked} requests, {search.leaves} lies that were taken, 0 exposed"
    )
    assert search.leaves > 0


def test_beyond_the_colluders_that_are_allowed_the_search_finds_a_lie():
    """C = 2 t - n: two lists with enough signatures each; so the search can see what the
    threshold prevents.
    """
    assert Search(4, 3, colluding(4, 2), 1).run() is None
    assert Search(4, 3, colluding(4, 2), 2).run() is not None


def old_context(purpose, *parts):
    """The plan's digest without the terms, as it was."""
    return DIGEST(purpose, *(parts[:-1] if purpose == b"plan" else parts))


DIGEST = plan_module.digest_of


def test_it_finds_a_mechanism_that_is_not_bound():
    """Fault 1: one client is told the true mechanism, the others one without noise; no
    colluders, genuine lists.
    """
    with patch.object(plan_module, "digest_of", old_context):
        lie = Search(3, 3, frozenset(), 3, terms=(TRUE, QUIET)).run()
    assert lie is not None
    assert len(set(lie["terms"].values())) == 2
    assert Search(3, 3, frozenset(), 3, terms=(TRUE, QUIET)).run() is None


def test_it_finds_signatures_that_nobody_looks_at():
    """One mutant more, so that the search is known to put clients of its own in the place of
    others.
    """
    case = {"n": 3, "t": 3, "bad": frozenset(), "honest": 3}
    assert Search(**case).run() is None
    with patch("quietbit.secagg.codec.verified", lambda *_: True):
        assert Search(**case).run() is not None
