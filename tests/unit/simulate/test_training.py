import pytest

import quietbit
from quietbit import Plan
from quietbit.mechanism.ball import Norm
from quietbit.simulate.problem import LocalPlan
from quietbit.simulate.training import Training

PLAN = Plan("none", clip=1.0, adjacency="zero-out", norm="l1")


def test_scores_come_where_asked_and_at_the_end():
    training = Training(0.1, 10, evaluate_at=(2, 5))
    assert [t for t in range(1, 11) if training.evaluated(t)] == [2, 5, 10]
    every = Training(0.1, 10, evaluate_every=4)
    assert [t for t in range(1, 11) if every.evaluated(t)] == [4, 8, 10]


def test_clients_take_their_part_from_both():
    assert Training(0.1, 10, local_steps=3, local_rate=0.2).local(PLAN) == LocalPlan(Norm.L1, 1.0, steps=3, rate=0.2)


@pytest.mark.parametrize(
    ("given", "mention"),
    [
        ({"lr": float("nan")}, "lr"),
        ({"rounds": 0}, "rounds"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": float("nan")}, "momentum"),
        ({"evaluate_at": (11,)}, "evaluate_at"),
        ({"evaluate_every": -1}, "evaluate_every"),
        ({"local_steps": 0}, "local steps"),
        ({"local_rate": 0.0}, "local rate"),
    ],
)
def test_refusals(given, mention):
    with pytest.raises(quietbit.InvalidParameter, match=mention):
        Training(**{"lr": 0.1, "rounds": 10, **given})


def test_several_steps_have_no_account_at_sample_level():
    with pytest.raises(quietbit.InvalidParameter, match="local steps"):
        Training(0.1, 10, local_steps=2).local(Plan("none", clip=1.0, adjacency="zero-out", unit="sample"))
