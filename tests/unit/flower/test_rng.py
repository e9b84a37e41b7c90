"""Secure words unless both sides ask for seeded ones; seeded words are the simulator's."""

import warnings
from dataclasses import replace

import pytest

from quietbit._validate import InvalidParameter
from quietbit.flower.rng import SeededWordsWarning, rng_for
from quietbit.flower.settings import RunSettings
from quietbit.simulate.client_rng import seeded_client_rng

SECURE = RunSettings("imvu", 1.0, 3.0, "zero-out", releases=1)
SEEDED = replace(SECURE, words="seeded", seed=5)


def test_secure_words_are_the_default_and_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(rng_for(SECURE, {}, 1)) == "secure_rng()"


def test_seeded_words_are_those_of_the_simulator_and_warn():
    with pytest.warns(SeededWordsWarning, match="protect nobody"):
        found = rng_for(SEEDED, {"partition-id": 3}, 4)
    assert found.draw(9).primary(0, 9).tolist() == seeded_client_rng(5)(3, 3).draw(9).primary(0, 9).tolist()


def test_a_node_with_something_of_its_own_must_agree():
    own = {"partition-id": 3, "quietbit.ledger": "x"}
    with pytest.raises(
        InvalidParameter, match=r'must be "secure" on a node with a setting of its own \(quietbit.ledger\)'
    ):
        rng_for(SEEDED, own, 1)
    with pytest.warns(SeededWordsWarning):
        rng_for(SEEDED, own | {"quietbit.words": "seeded"}, 1)


def test_seeded_words_need_a_partition():
    with pytest.raises(InvalidParameter, match="partition-id for seeded words"):
        rng_for(SEEDED, {}, 1)
    with pytest.raises(InvalidParameter, match="partition-id must be"):
        rng_for(SEEDED, {"partition-id": 2**48}, 1)
