from itertools import combinations, product

from pairs import pairs


def test_every_two_values_meet_and_nothing_comes_twice():
    axes = ([None, "a", "b", "c"], [1, 2, 3, 4], [(2, 0.25), (1, 3.0), (2, 1e9)])
    rows = pairs(*axes)
    for (i, first), (j, second) in combinations(enumerate(axes), 2):
        assert {(row[i], row[j]) for row in rows} == set(product(first, second))
    assert len(set(rows)) == len(rows) == 16  # as few as there can be
