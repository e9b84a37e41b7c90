"""The bound on exposure is never below brute force over shares, colluders and dropouts."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from quietbit.errors import InvalidParameter
from quietbit.secagg.exposure import exposure_upper, least_share_threshold, neighbours_for
from quietbit.secagg.plan import SumPlan


def exposed(chosen: list[int], bad: int, gone: int, needed: int, honest: int) -> bool:
    """Return whether two secrets of a client, or a sum of too few, leak for some ``gone`` clients.

    Counted share by share. Sets are bits of a number. Colluders give both shares that they hold of
    a client; honest clients that stay give that of the seed of those who stay; a mask between two
    who stay is known only with the pair key of one of them.
    """
    n = len(chosen)
    good = [i for i in range(n) if not bad >> i & 1]
    both = [i for i in good if (chosen[i] & bad).bit_count() >= needed]
    if both:
        return True
    for left in combinations(good, gone):
        stay = [i for i in good if i not in left]
        present = sum(1 << i for i in stay)
        seeds = {i for i in stay if (chosen[i] & (present | bad)).bit_count() + 1 >= needed}
        linked = {
            i: (chosen[i] | sum(1 << j for j in stay if chosen[j] >> i & 1)) & present for i in stay
        }
        seen = 0
        for start in stay:
            if seen >> start & 1:
                continue
            group, edge = 1 << start, 1 << start
            while edge:
                reach = 0
                for i in stay:
                    if edge >> i & 1:
                        reach |= linked[i]
                edge, group = reach & ~group, group | reach
            seen |= group
            if group.bit_count() < honest and all(i in seeds for i in stay if group >> i & 1):
                return True
    return False


def choices(n: int, k: int) -> list[list[int]]:
    """All that each client may choose."""
    others = [[j for j in range(n) if j != i] for i in range(n)]
    return [[sum(1 << j for j in some) for some in combinations(rest, k)] for rest in others]


@pytest.mark.parametrize(
    ("k", "needed", "bad", "honest", "gone"),
    [
        (2, 2, 1, 3, 0),
        (2, 3, 1, 3, 1),
        (2, 2, 1, 2, 1),
        (2, 3, 2, 2, 1),
        (3, 3, 1, 3, 1),
        (3, 3, 2, 2, 1),
        (2, 3, 1, 4, 0),
        (3, 2, 1, 2, 2),
        (4, 3, 2, 2, 1),
        (4, 2, 2, 3, 0),
    ],
)
def test_exact_for_five_clients_and_every_graph(
    k: int, needed: int, bad: int, honest: int, gone: int
) -> None:
    """Every graph there is: the bound is at least the exact chance, and not always 1."""
    n = 5
    graphs = choices(n, k)
    count = sum(
        exposed(list(graph), (1 << bad) - 1, gone, needed, honest) for graph in product(*graphs)
    )
    exact = count / len(graphs[0]) ** n
    upper = exposure_upper(n, n - gone, k, needed, bad, honest)
    assert upper >= exact


def test_the_bound_says_something_and_the_oracle_can_tell() -> None:
    found = {s: exposure_upper(5, 5, 2, s, 1, 3) for s in (2, 3)}
    graphs = choices(5, 2)
    exact = {s: sum(exposed(list(g), 1, 0, s, 3) for g in product(*graphs)) / 6**5 for s in found}
    assert 0 < exact[3] <= found[3] < 0.2
    assert 0 < exact[2] <= found[2] < 1


@pytest.mark.parametrize(
    ("n", "k", "needed", "bad", "honest", "gone"),
    [
        (6, 3, 4, 1, 4, 0),
        (7, 4, 4, 2, 3, 1),
        (8, 4, 4, 2, 4, 1),
        (8, 5, 5, 3, 3, 1),
        (8, 3, 3, 1, 4, 1),
        (8, 4, 5, 2, 4, 2),
    ],
)
def test_every_set_of_colluders_up_to_eight_clients(
    n: int, k: int, needed: int, bad: int, honest: int, gone: int
) -> None:
    """Random graphs, all sets of colluders and of dropouts; a false alarm in 1e9."""
    rng, draws, found = np.random.default_rng(n * k), 60, 0
    graphs, sets = (
        choices(n, k),
        [sum(1 << i for i in some) for some in combinations(range(n), bad)],
    )
    upper, worst = exposure_upper(n, n - gone, k, needed, bad, honest), 0
    per_set = dict.fromkeys(sets, 0)
    for _ in range(draws):
        graph = [options[rng.integers(len(options))] for options in graphs]
        for colluders in sets:
            per_set[colluders] += exposed(graph, colluders, gone, needed, honest)
    worst, found = max(per_set.values()), sum(per_set.values())
    assert binom.sf(worst - 1, draws, upper) * len(sets) > 1e-9
    print(
        f"n = {n}, k = {k}, s = {needed}, C = {bad}, h = {honest}: "
        f"{found} of {draws * len(sets)}, bound {upper:.2g}"
    )


@pytest.mark.parametrize(
    ("k", "needed", "bad", "gone"),
    [(8, 5, 60, 20), (12, 7, 100, 50), (100, 6, 50, 50), (6, 5, 100, 30), (10, 4, 20, 50)],
)
def test_a_thousand_clients_sampled(k: int, needed: int, bad: int, gone: int) -> None:
    """One client (h = 2): both secrets leak, or its seed with all honest neighbours dropped."""
    n, draws, found, single = 1000, 20, 0, 0
    rng = np.random.default_rng(k)
    for _ in range(draws):
        table = np.argpartition(rng.random((n, n - 1), dtype=np.float32), k, axis=1)[:, :k]
        table = table + (table >= np.arange(n)[:, None])
        held = (table < bad).sum(axis=1)[bad:]
        linked = np.zeros((n, n), dtype=bool)
        linked[np.arange(n)[:, None], table] = True
        near = (linked | linked.T)[bad:, bad:].sum(axis=1)
        single += int((held >= needed).sum())
        found += bool(((held >= needed) | ((held >= needed - 1) & (near <= gone))).any())
    upper = exposure_upper(n, n - gone, k, needed, bad, 2)
    assert binom.sf(found - 1, draws, upper) > 1e-9
    chance = hypergeom.sf(needed - 1, n - 1, bad, k)
    tails = (
        binom.cdf(single, draws * (n - bad), chance),
        binom.sf(single - 1, draws * (n - bad), chance),
    )
    assert min(tails) > 1e-12  # (a) is hypergeometric; clients are nearly independent
    assert upper >= min(1.0, chance)
    if upper < 0.2:
        assert found < draws
    print(
        f"n = 1000, k = {k}, s = {needed}, C = {bad}: {found} of {draws} exposed, bound {upper:.3g}"
    )


def test_what_was_claimed_to_be_impossible_is_likely() -> None:
    """Two cases whose bound was once 0 and 1e-53: colluding holders have both secrets."""
    assert exposure_upper(20, 20, 19, 2, 3, 17) == 1.0
    assert hypergeom.sf(5, 999, 50, 100) == pytest.approx(0.38, abs=0.01)
    assert exposure_upper(1000, 950, 100, 6, 50, 810) == 1.0
    for given in ((20, 20, 19, 2), (1000, 950, 100, 6), (1000, 950, 25, 13), (99, 90, 20, 15)):
        n, t, k, s = given
        with pytest.raises(InvalidParameter):
            SumPlan(n, t, 1, b"r", 1, k, s)
    assert [least_share_threshold(k) for k in (2, 3, 10, 25)] == [2, 3, 6, 14]


def test_more_of_anything_bad_is_never_better() -> None:
    base = {
        "clients": 200,
        "threshold": 180,
        "neighbours": 20,
        "needed": 13,
        "colluders": 10,
        "honest": 100,
    }
    here = exposure_upper(**base)
    assert 0 < here < 1e-6
    for change in ({"colluders": 12}, {"threshold": 175}, {"honest": 120}, {"needed": 12}):
        assert exposure_upper(**base | change) >= here
    assert (
        exposure_upper(**base | {"honest": 171}) == 1.0
        or exposure_upper(**base | {"honest": 170}) > here
    )


def test_a_thousand_clients_need_few_neighbours() -> None:
    found = neighbours_for(1000, 50, 50)
    assert found == (25, 17)
    assert exposure_upper(1000, 950, *found, 50, 810) <= 2.0**-40
    assert exposure_upper(1000, 950, *found, 51, 810) > exposure_upper(1000, 950, *found, 50, 810)
    assert neighbours_for(99, 1, 1) is None
    assert neighbours_for(1000, 900, 50) is None
    assert neighbours_for(1000, 50, 50, honest=901) is None
