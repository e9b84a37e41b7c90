"""The bounds against exact shuffles.

Never below them, and where a hypothesis fails, what happens.
"""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from lab.exact.shuffle_kit import histograms, hockey_stick, largest_ratio, power_of_e, transcripts
from quietbit.design.profile import Profile
from quietbit.target import Adjacency
from quietbit_lab.shuffle.amplification import Shuffle, clones, through_zero
from quietbit_lab.shuffle.blanket import Blanket
from quietbit_lab.shuffle.profile import profile_blanket

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
SHARES = (0.0, 0.02, 0.1, 0.3, 0.6, 0.9)  # of the local epsilon


def response(outputs: int, p: int) -> list[tuple[Fraction, ...]]:
    """Randomised response with so many values."""
    return [
        tuple(Fraction(p if j == k else 1, p + outputs - 1) for j in range(outputs))
        for k in range(outputs)
    ]


def staircases(seed: int, p: int) -> list[tuple[Fraction, ...]]:
    """Three inputs, three outputs, ratios of at most p."""
    generator = np.random.default_rng(seed)
    while True:
        base = [Fraction(int(x), 64) for x in generator.integers(1, 65, size=3)]
        rows = [[x * (p if generator.integers(2) else 1) for x in base] for _ in range(3)]
        found = [tuple(x / sum(row) for x in row) for row in rows]
        if len(set(found)) == 3:
            return found


def worst(rows, others_from, crowd, factor):
    """The largest hockey-stick over all neighbours and all inputs of the others.

    Shuffling forgets their order.
    """
    found = Fraction(0)
    for others in itertools.combinations_with_replacement(others_from, crowd - 1):
        rest = histograms(others) if others else None
        laws = [histograms([row], rest) for row in rows]
        found = max(found, further_apart(laws, factor))
    return found


def further_apart(laws, factor):
    """The larger hockey-stick of any two laws, both ways round."""
    return max(hockey_stick(one, other, factor) for one, other in itertools.permutations(laws, 2))


def assert_dominates(bound, rows, crowds, neighbours=None, room=0.0):
    """``neighbours``: groups of rows among which the updates of one client may change."""
    local = largest_ratio(rows)
    for crowd, share in itertools.product(crowds, SHARES):
        factor = power_of_e(share * local)
        exact = max(worst(group, rows, crowd, factor) for group in neighbours or [rows])
        assert float(exact) <= bound.delta_upper(crowd, share * local) * (1 + room)


@pytest.mark.parametrize(
    ("rows", "crowds"),
    [
        (response(2, 2), (1, 2, 12)),
        (response(2, 20), (2, 12)),
        (response(3, 5), (2, 4)),
        (staircases(1, 4), (3,)),
        (staircases(2, 30), (4,)),
        (staircases(3, 7), (2, 3)),
    ],
)
def test_clones_dominate_every_shuffle(rows, crowds):
    assert_dominates(clones(largest_ratio(rows)), rows, crowds)


def through(zero, rows, adjacency):
    """Groups of neighbours: any two of all rows, or the row of zero and another."""
    return [[zero, *rows]] if adjacency is REPLACE else [[zero, row] for row in rows]


@pytest.mark.parametrize("adjacency", [REPLACE, ZERO])
@pytest.mark.parametrize("p", [2, 8])
def test_through_zero_dominates(adjacency, p):
    """Rows within a ratio p of a middle one, which is that of the zero update."""
    zero = (Fraction(1, p + 1), Fraction(1, p + 1), Fraction(p - 1, p + 1))
    rest = Fraction(p - 1, p * (p + 1))
    rows = [(p * zero[0], zero[1] / p, rest), (zero[0] / p, p * zero[1], rest)]
    bound = through_zero(math.nextafter(math.log(p), 9), adjacency)
    assert_dominates(bound, [zero, *rows], (1, 2, 4), through(zero, rows, adjacency))


PROFILES = [
    Profile.from_weights([0.8], [1.0, 9.0]),
    Profile.from_weights([-0.3, 0.4, 1.5], [1.0, 2.0, 3.0, 12.0]),
]


@pytest.mark.parametrize("adjacency", [REPLACE, ZERO])
@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_in_one_dimension(profile, adjacency):
    """The vector mechanism on the line has the updates -1, 0 and 1.

    All of its shuffles, cell by cell.
    """
    cuts = np.unique([*profile.edges, *-profile.edges])
    masses = np.diff([0.0, *stats.norm.cdf(cuts), 1.0])
    middles = np.array([cuts[0] - 1, *(cuts[:-1] + cuts[1:]) / 2, cuts[-1] + 1])
    weights = [np.ones(masses.size), profile(middles), profile(-middles)]
    exact = [[Fraction(m) for m in masses * weight] for weight in weights]
    zero, *rows = [tuple(x / sum(row) for x in row) for row in exact]
    bound = profile_blanket(profile, adjacency)
    assert bound is not None
    crowds = (1, 2, 5) if len(cuts) == 2 else (2, 3)
    neighbours = [rows] if adjacency is REPLACE else through(zero, rows, ZERO)
    assert_dominates(bound, [zero, *rows], crowds, neighbours, room=1e-9)


@pytest.mark.parametrize(
    "masses", [(0.5, 0.5, 0.0), (0.2, 0.2, 0.6), (0.3, 0.1, 0.6), (0.9, 0.1, 0.0)]
)
def test_the_sum_is_what_it_should_be(masses):
    """E(sum)_+ / (n g) over all multinomial counts, for crowds whose tables have every row."""
    u, v = (2.0, 0.25, 0.5), (0.25, 2.0, 0.5)
    for share, crowd in ((0.3, 1), (0.3, 3), (0.9, 9), (1.0, 6), (0.05, 14)):
        g = Fraction(share)
        shares = [g * Fraction(m) / sum(map(Fraction, masses)) for m in masses]
        chances = [tuple([*shares, 1 - g])] * crowd
        law = histograms(chances)
        for epsilon in (0.0, 0.4, 1.2):
            factor = power_of_e(epsilon)
            x = [Fraction(a) - factor * Fraction(b) for a, b in zip(u, v, strict=True)]
            exact = sum(
                mass * max(Fraction(0), sum(map(operator.mul, counts[:3], x)))
                for counts, mass in law.items()
            )
            exact = min(1.0, float(exact / (crowd * g)))
            found = Blanket(share, masses, u, v).delta_upper(crowd, epsilon)
            assert exact <= found
            if masses[2] == 0:
                assert found <= exact * (1 + 1e-9) + 1e-15


def test_the_published_pair_is_the_same_number():
    """Feldman, McMillan, Talwar (2021): (A + D, C - A + 1 - D), summed as it stands."""
    crowd, local = 300, 1.5
    keep, mine = math.exp(-local), math.exp(local) / (math.exp(local) + 1)
    counts = np.stack(np.meshgrid(np.arange(crowd), np.arange(crowd), indexing="ij"), axis=-1)
    rest = crowd - 1 - counts.sum(axis=-1, keepdims=True)
    clones_of = stats.multinomial(crowd - 1, [keep / 2, keep / 2, 1 - keep])
    others = clones_of.pmf(np.concatenate([counts, rest], axis=-1))
    left, right = np.pad(others, ((1, 0), (0, 1))), np.pad(others, ((0, 1), (1, 0)))
    first, second = mine * left + (1 - mine) * right, (1 - mine) * left + mine * right
    for epsilon in (0.0, 0.1, 0.4, 0.8):
        exact = float(np.maximum(0, first - math.exp(epsilon) * second).sum())
        assert exact * (1 - 1e-9) <= clones(local).delta_upper(crowd, epsilon) <= exact * (1 + 1e-6)


# Releases that come one after the other: what is asked next, and what everybody answers, depends on
# what came before.


def adaptive(world: int, p: int):
    """Whom a bit leans to, and what clients hold, changes with what was seen.

    The victim is client 0.
    """

    def law(prefix: tuple[int, ...], client: int) -> tuple[Fraction, ...]:
        seen = sum(prefix) + len(prefix)
        held = (world + seen * (seen % 3 == 1)) % 2 if client == 0 else (client * (seen + 1)) % 2
        lean = (
            Fraction(p, p + 1) if seen % 2 == 0 else Fraction(p, 2 * p)
        )  # the second: a narrower response
        one = lean if held else 1 - lean if seen % 2 == 0 else Fraction(1, 2 * p) + Fraction(1, 4)
        return 1 - one, one

    return law


@pytest.mark.parametrize("p", [3, 12])
def test_adaptive_order_is_covered(p):
    clients = 5
    laws = [transcripts(None, clients, adaptive(world, p)) for world in (0, 1)]
    assert [sum(law.values()) for law in laws] == [1, 1]
    local = math.nextafter(math.log(p), 9)
    for share in SHARES:
        exact = further_apart(laws, power_of_e(share * local))
        assert 0 <= float(exact) <= clones(local).delta_upper(clients, share * local)


def fixed(world: int, p: int):
    """Plain responses: the victim holds the world, everybody else 1."""

    def law(prefix: tuple[int, ...], client: int) -> tuple[Fraction, ...]:
        one = Fraction(p, p + 1) if (world if client == 0 else 1) else Fraction(1, p + 1)
        return 1 - one, one

    return law


def test_what_an_order_that_is_not_uniform_costs():
    """The victim comes first with probability 0.95, or as the server chose.

    More than the bound of a uniform order.
    """
    clients, p = 5, 4
    first_ones = math.factorial(clients - 1)  # permutations in order of their first client
    number = math.factorial(clients)
    even = [(k, Fraction(1, number)) for k in range(number)]
    rest = Fraction(1, 20 * (number - first_ones))
    skewed = [(k, Fraction(19, 20 * first_ones) if k < first_ones else rest) for k in range(number)]
    chosen = [(0, Fraction(1))]
    bound = clones(math.nextafter(math.log(p), 9))
    for order, holds in ((even, True), (skewed, False), (chosen, False)):
        laws = [transcripts(order, clients, fixed(world, p)) for world in (0, 1)]
        exact = further_apart(laws, power_of_e(0.9))
        assert (float(exact) <= bound.delta_upper(clients, 0.9)) is holds


def test_a_client_twice_in_one_shuffle_is_not_covered():
    """Two releases of one client in a shuffle exceed the bound, which one of them keeps."""
    crowd, p, epsilon = 12, 3, 0.5
    one = Fraction(1, p + 1)
    rows, far = [(p * one, one, 0 * one), (one, p * one, 0 * one)], (one, one, 1 - 2 * one)
    bound = clones(math.nextafter(math.log(p), 9)).delta_upper(crowd, epsilon)
    for times, holds in ((1, True), (2, False)):
        laws = [histograms([*[row] * times, *[far] * (crowd - times)]) for row in rows]
        assert (float(further_apart(laws, power_of_e(epsilon))) <= bound) is holds


@pytest.mark.parametrize("times", [2, 3])
def test_composed_shuffles_dominate_their_product(times):
    crowd, p = 6, 3
    rows, local = response(2, p), math.nextafter(math.log(3), 9)
    curve = Shuffle(crowd, local, (clones(local),)).cost() * times
    pairs = [histograms([row, *[rows[1]] * (crowd - 1)]) for row in rows]
    products = [
        {
            outputs: math.prod(law[output] for output in outputs)
            for outputs in itertools.product(law, repeat=times)
        }
        for law in pairs
    ]
    for delta in (0.2, 0.02, 1e-3):
        assert float(further_apart(products, power_of_e(curve.epsilon(delta)))) <= delta
