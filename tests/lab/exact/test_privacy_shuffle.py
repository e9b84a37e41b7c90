"""The bounds against exact shuffles.

Never below them, and where a hypothesis fails, what happens.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

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
        for first, second in itertools.permutations(laws, 2):
            found = max(found, hockey_stick(first, second, factor))
    return found


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
    local = largest_ratio(rows)
    for crowd in crowds:
        bound = clones(local)
        for share in SHARES:
            exact = worst(rows, rows, crowd, power_of_e(share * local))
            assert float(exact) <= bound.delta_upper(crowd, share * local)


@pytest.mark.parametrize("adjacency", [REPLACE, ZERO])
@pytest.mark.parametrize("p", [2, 8])
def test_through_zero_dominates(adjacency, p):
    """Rows within a ratio p of a middle one, which is that of the zero update."""
    zero = (Fraction(1, p + 1), Fraction(1, p + 1), Fraction(p - 1, p + 1))
    rest = Fraction(p - 1, p * (p + 1))
    rows = [(p * zero[0], zero[1] / p, rest), (zero[0] / p, p * zero[1], rest)]
    assert all(sum(row) == 1 for row in [zero, *rows])
    local, every = math.nextafter(math.log(p), 9), [zero, *rows]
    for crowd in (1, 2, 4):
        for share in SHARES:
            factor = power_of_e(share * local)
            bound = through_zero(local, adjacency).delta_upper(crowd, share * local)
            if adjacency is REPLACE:
                assert float(worst(every, every, crowd, factor)) <= bound
            else:
                pairs = [worst([zero, row], every, crowd, factor) for row in rows]
                assert float(max(pairs)) <= bound


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
    cuts = sorted({*profile.edges.tolist(), *(-profile.edges).tolist()})
    masses = np.diff([0.0, *(0.5 * math.erfc(-cut / math.sqrt(2)) for cut in cuts), 1.0])
    middles = [cuts[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(cuts)), cuts[-1] + 1]
    plus = [Fraction(m * profile(np.array([t]))[0]) for m, t in zip(masses, middles, strict=True)]
    minus = [Fraction(m * profile(np.array([-t]))[0]) for m, t in zip(masses, middles, strict=True)]
    zero = [Fraction(m) for m in masses]
    rows = [tuple(x / sum(row) for x in row) for row in (plus, minus, zero)]
    pair = profile_blanket(profile, adjacency)
    assert pair is not None
    local = largest_ratio(rows)
    crowds = (1, 2, 5) if len(cuts) == 2 else (2, 3)
    for crowd in crowds:
        for share in SHARES:
            factor = power_of_e(share * local)
            bound = pair.delta_upper(crowd, share * local)
            ends = [rows[:2]] if adjacency is REPLACE else [[rows[2], rows[0]], [rows[2], rows[1]]]
            assert max(float(worst(end, rows, crowd, factor)) for end in ends) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "masses", [(0.5, 0.5, 0.0), (0.2, 0.2, 0.6), (0.3, 0.1, 0.6), (0.9, 0.1, 0.0)]
)
def test_the_sum_is_what_it_should_be(masses):
    """E(sum)_+ / (n g) over all multinomial counts, for crowds whose tables have every row."""
    u, v = (2.0, 0.25, 0.5), (0.25, 2.0, 0.5)
    for share, crowd in ((0.3, 1), (0.3, 3), (0.9, 9), (1.0, 6), (0.05, 14)):
        blanket = Blanket(share, masses, u, v)
        for epsilon in (0.0, 0.4, 1.2):
            factor = power_of_e(epsilon)
            exact, g = Fraction(0), Fraction(share)
            weights = [g * Fraction(m) / sum(map(Fraction, masses)) for m in masses]
            x = [Fraction(a) - factor * Fraction(b) for a, b in zip(u, v, strict=True)]
            for counts in itertools.product(range(crowd + 1), repeat=3):
                if sum(counts) > crowd:
                    continue
                left = crowd - sum(counts)
                many = math.factorial(crowd) // math.prod(map(math.factorial, (*counts, left)))
                mass = (
                    many
                    * (1 - g) ** left
                    * math.prod(w**c for w, c in zip(weights, counts, strict=True))
                )
                exact += mass * max(Fraction(0), sum(c * y for c, y in zip(counts, x, strict=True)))
            exact = min(Fraction(1), exact / (crowd * g))
            found = blanket.delta_upper(crowd, epsilon)
            assert float(exact) <= found
            if masses[2] == 0:
                assert found <= float(exact) * (1 + 1e-9) + 1e-15


def test_the_published_pair_is_the_same_number():
    """Feldman, McMillan, Talwar (2021): (A + D, C - A + 1 - D), summed as it stands."""
    crowd, local = 300, 1.5
    p, keep = math.exp(local), math.exp(-local)
    law: dict[tuple[int, int], list[float]] = {}
    log_keep, log_drop = math.log(keep / 2), math.log1p(-keep)
    for a in range(crowd):
        for b in range(crowd - a):
            rest = crowd - 1 - a - b
            size = (
                math.lgamma(crowd) - math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(rest + 1)
            )
            mass = math.exp(size + (a + b) * log_keep + rest * log_drop)
            for place, (first, second) in (((a + 1, b), (p, 1.0)), ((a, b + 1), (1.0, p))):
                entry = law.setdefault(place, [0.0, 0.0])
                entry[0] += mass * first / (p + 1)
                entry[1] += mass * second / (p + 1)
    for epsilon in (0.0, 0.1, 0.4, 0.8):
        exact = math.fsum(max(0.0, q - math.exp(epsilon) * r) for q, r in law.values())
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
    first, second = (transcripts(None, clients, adaptive(world, p)) for world in (0, 1))
    assert sum(first.values()) == sum(second.values()) == 1
    local = math.nextafter(math.log(p), 9)
    for share in SHARES:
        factor, bound = power_of_e(share * local), clones(local).delta_upper(clients, share * local)
        assert (
            0
            <= float(max(hockey_stick(first, second, factor), hockey_stick(second, first, factor)))
            <= bound
        )


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
        epsilon = 0.9
        exact = max(
            hockey_stick(a, b, power_of_e(epsilon)) for a, b in itertools.permutations(laws, 2)
        )
        assert (float(exact) <= bound.delta_upper(clients, epsilon)) is holds


def test_a_client_twice_in_one_shuffle_is_not_covered():
    """Two releases of one client in a shuffle exceed the bound, which one of them keeps."""
    crowd, p, epsilon = 12, 3, 0.5
    rows = [
        (Fraction(p, p + 1), Fraction(1, p + 1), Fraction(0)),
        (Fraction(1, p + 1), Fraction(p, p + 1), Fraction(0)),
    ]
    far = (Fraction(1, p + 1), Fraction(1, p + 1), Fraction(p - 1, p + 1))
    bound = clones(math.nextafter(math.log(p), 9)).delta_upper(crowd, epsilon)
    for times, holds in ((1, True), (2, False)):
        laws = [histograms([*[row] * times, *[far] * (crowd - times)]) for row in rows]
        exact = max(
            hockey_stick(one, other, power_of_e(epsilon))
            for one, other in itertools.permutations(laws, 2)
        )
        assert (float(exact) <= bound) is holds


@pytest.mark.parametrize("times", [2, 3])
def test_composed_shuffles_dominate_their_product(times):
    crowd, p = 6, 3
    rows, local = response(2, p), math.nextafter(math.log(3), 9)
    curve = Shuffle(crowd, local, (clones(local),)).cost() * times
    pairs = [histograms([row, *[rows[1]] * (crowd - 1)]) for row in rows]
    for first, second in itertools.permutations(pairs, 2):
        product_first, product_second = {(): Fraction(1)}, {(): Fraction(1)}
        for _ in range(times):
            product_first = {
                (*k, j): m * q for k, m in product_first.items() for j, q in first.items()
            }
            product_second = {
                (*k, j): m * q for k, m in product_second.items() for j, q in second.items()
            }
        for delta in (0.2, 0.02, 1e-3):
            epsilon = curve.epsilon(delta)
            assert float(hockey_stick(product_first, product_second, power_of_e(epsilon))) <= delta
