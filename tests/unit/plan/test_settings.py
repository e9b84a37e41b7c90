import pytest
from quietbit.plan.settings import Settings

import quietbit

USUAL = {"mechanism": "imvu", "epsilon": 1.0, "lr": 0.1, "rounds": 10, "cohort": 5, "clip": 1.0}


def test_settings_survive_a_record():
    settings = Settings(**{**USUAL, "evaluate_at": (2, 5)})
    assert Settings.from_json(settings.to_json()) == settings


def test_scores_come_where_asked_and_at_the_end():
    settings = Settings(**{**USUAL, "evaluate_at": (2, 5)})
    assert [t for t in range(1, 11) if settings.evaluated(t)] == [2, 5, 10]
    every = Settings(**{**USUAL, "evaluate_every": 4})
    assert [t for t in range(1, 11) if every.evaluated(t)] == [4, 8, 10]


@pytest.mark.parametrize(
    ("given", "mention"),
    [
        ({"mechanism": "rappor"}, "mechanism"),
        ({"epsilon": None}, "epsilon"),
        ({"noise": 1.0}, "noise"),
        ({"mechanism": "gaussian"}, "epsilon"),
        ({"mechanism": "gaussian", "epsilon": None}, "noise"),
        ({"mechanism": "none", "epsilon": None, "target_epsilon": 3.0}, "target_epsilon"),
        ({"lr": float("nan")}, "lr"),
        ({"rounds": 0}, "rounds"),
        ({"momentum": 1.0}, "momentum"),
        ({"delta": 1.0}, "delta"),
        ({"norm": "l3"}, "norm"),
        ({"unit": "person"}, "unit"),
        ({"adjacency": "add-remove"}, "adjacency"),
        ({"words": "fixed"}, "words"),
        ({"evaluate_at": (11,)}, "evaluate_at"),
        ({"seed": -1}, "seed"),
        ({"unit": "sample", "local_steps": 2}, "local steps"),
        ({"trust": "nobody"}, "trust"),
        ({"trust": "central"}, "mechanism must be gaussian under central trust"),
        ({"honest": 3}, "honest must be left out"),
        ({"trust": "secure-aggregation", "honest": 6}, "honest"),
        ({"trust": "secure-aggregation", "cohort": 1}, "cohort"),
        ({"trust": "secure-aggregation", "bits": 5}, "bits"),
        ({"trust": "secure-aggregation", "unit": "sample"}, "unit must be client"),
        ({"trust": "secure-aggregation", "mechanism": "mvu"}, "mechanism must be imvu"),
        ({"trust": "secure-aggregation", "epsilon": None, "target_epsilon": 1.0, "beta": 2.0}, "beta and clamp"),
    ],
)
def test_refusals(given, mention):
    with pytest.raises(quietbit.InvalidParameter, match=mention):
        Settings(**{**USUAL, **given})


def test_unknown_and_missing_names_are_refused():
    with pytest.raises(quietbit.InvalidParameter, match="momentun"):
        Settings.from_json({**USUAL, "momentun": 0.5})
    with pytest.raises(quietbit.InvalidParameter, match="not complete"):
        Settings.from_json({"mechanism": "none"})


def test_secure_aggregation_states_whom_it_counts_on():
    assert Settings(**USUAL, trust="secure-aggregation").honest == 5
    assert Settings(**USUAL, trust="secure-aggregation", honest=4).to_json()["honest"] == 4
    assert Settings(**USUAL).honest is None
