"""A target is checked once, in one place, and words stand for their members."""

import math

import pytest

import quietbit
from quietbit.errors import InvalidParameter, check_known
from quietbit.target import Adjacency, Target, Trust, Unit
from refusals import refuses


def test_words_and_members_are_the_same_target():
    words = Target(1, 0, "replace-one", unit="sample", trust="secure-aggregation", releases=3)
    assert words == Target(
        1.0,
        0.0,
        Adjacency.REPLACE_ONE,
        unit=Unit.SAMPLE,
        trust=Trust.SECURE_AGGREGATION,
        releases=3,
    )
    assert isinstance(words.epsilon, float)
    assert {words, words} == {words}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": "3"}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": -math.inf}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": "0"}, "delta"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"adjacency": None}, "adjacency"),
        ({"unit": "person"}, "unit"),
        ({"trust": "nobody"}, "trust"),
        ({"releases": 0}, "releases"),
        ({"releases": 1.5}, "releases"),
    ],
)
def test_refusals_say_which_part_is_wrong(changes, name):
    with pytest.raises(InvalidParameter) as refusal:
        Target(**{"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out", **changes})
    assert refusal.value.name == name
    value = next(iter(changes.values()))
    sentence = f"{name} must be {refusal.value.rule}, got {value!r}"
    assert str(refusal.value).startswith(sentence)


def test_adjacency_and_delta_have_no_default():
    with pytest.raises(TypeError, match="adjacency"):
        Target(1.0, 1e-5)


def test_a_target_without_a_limit_counts_and_cannot_be_met():
    assert Target(math.inf, 1e-5, "zero-out").epsilon == math.inf
    with refuses("epsilon", math.inf):
        Target(math.inf, 1e-5, "zero-out").limited()
    with refuses("epsilon", math.inf):
        quietbit.calibrate(
            "gaussian",
            ball=quietbit.Ball("l2", 3),
            epsilon=math.inf,
            delta=1e-5,
            adjacency="zero-out",
        )


def test_a_refusal_keeps_its_parts_under_another_name():
    error = InvalidParameter.of("clip", "positive", -1).renamed("quietbit.clip")
    assert (error.name, error.rule, error.value) == ("quietbit.clip", "positive", -1)
    assert str(error) == "quietbit.clip must be positive, got -1."
    missing = InvalidParameter.of("releases", "given to meet a budget").renamed("--releases")
    assert str(missing) == "--releases must be given to meet a budget."


def test_a_mistyped_word_is_answered_with_the_nearest():
    check_known("delta", ["epsilon", "delta"], "key")
    with pytest.raises(InvalidParameter, match="did you mean 'delta'"):
        check_known("dleta", ["epsilon", "delta"], "key")
    with pytest.raises(InvalidParameter, match="key must be one of epsilon, delta, got 'x'"):
        check_known("x", ["epsilon", "delta"], "key")
