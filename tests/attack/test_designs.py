"""Designs that an account would read otherwise than a sampler draws: each is refused wherever a
design enters.
"""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from quietbit import Ball, Design, DesignSpec, InvalidParameter, solve
from quietbit.design.table import exact_row
from quietbit.errors import InvalidDesignFile
from quietbit.mechanism.registry import build, describe
from quietbit_lab.baseline.dithered import DitheredMVU

SPEC = DesignSpec(2, 1, 2.0)
ALPHABET = [-0.2, 1.2]
# The first claimed log 3 = 1.099 where what is sampled, the normalised rows, has log 5 = 1.609.
LOOSE = (
    [[0.3, 0.3], [0.1, 0.9]],
    [[0.5, 0.5 + 2.0**-53], [0.25, 0.75]],
    [[0.1, 0.2], [0.3, 0.4]],
    [[0.7, 0.7], [0.2, 0.8]],
)


def test_the_account_of_loose_rows_was_wrong():
    rows = np.array(LOOSE[0])
    sampled = rows / rows.sum(axis=1, keepdims=True)
    assert np.abs(np.diff(np.log(rows), axis=0)).max() == pytest.approx(math.log(3))
    assert np.abs(np.diff(np.log(sampled), axis=0)).max() == pytest.approx(math.log(5))


@pytest.mark.parametrize("rows", LOOSE)
def test_rows_that_do_not_sum_to_one_are_refused(rows):
    with pytest.raises(InvalidParameter, match="sum of the probabilities of level"):
        Design(SPEC, np.array(rows), np.array(ALPHABET))


@pytest.mark.parametrize(
    ("rows", "alphabet"),
    [
        ([[1.0, 0.0], [0.25, 0.75]], ALPHABET),
        ([[1.25, -0.25], [0.25, 0.75]], ALPHABET),
        ([[math.nan, 0.5], [0.25, 0.75]], ALPHABET),
        ([[0.5, 0.5], [0.25, 0.75]], [1.2, -0.2]),
        ([[0.5, 0.5], [0.25, 0.75]], [math.nan, 1.2]),
        ([[0.5, 0.5], [0.25, 0.75]], [-0.2, math.inf]),
    ],
)
def test_zeros_signs_nan_and_falling_alphabets_are_refused(rows, alphabet):
    with pytest.raises(InvalidParameter):
        Design(SPEC, np.array(rows), np.array(alphabet))


@pytest.mark.parametrize("rows", LOOSE)
def test_a_file_with_such_rows_is_refused_even_if_its_identity_is_right(
    rows,
):
    import hashlib

    good = solve(SPEC)
    content = {**json.loads(good.canonical()), "probabilities": rows}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["identity"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(InvalidDesignFile, match="sum of the probabilities"):
        Design.parse(json.dumps(content), "a file")
    described = describe(DitheredMVU(good, Ball("l2", 3)))
    described["design"] = {"design": content}
    with pytest.raises(InvalidParameter, match="sum of the probabilities"):
        build(described)


def test_thousands_of_random_rows_are_made_exact_or_refused():
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(3000):
        weights = np.exp(
            rng.normal(scale=rng.choice([0.3, 3.0, 12.0]), size=rng.choice([2, 4, 16]))
        )
        exact = exact_row(weights)
        assert sum((Fraction(value) for value in exact.tolist()), Fraction(0)) == 1
        loose = weights / weights.sum()
        spec = DesignSpec(2, int(math.log2(weights.size)), 2.0)
        alphabet = np.sort(rng.normal(size=weights.size))
        if sum((Fraction(value) for value in loose.tolist()), Fraction(0)) != 1:
            refused += 1
            with pytest.raises(InvalidParameter):
                Design(spec, np.stack([loose, exact]), alphabet)
    assert refused > 500
