"""A comparison: every way has a row, what it promises is what a simulation finds, and nothing is
asked by name.
"""

import math
from functools import lru_cache

import attrs
import numpy as np
import pytest

import quietbit
from plans import engine_plan, flat_plan
from quietbit.errors import InvalidParameter
from quietbit.federation.compare import compare, dimension_of
from quietbit.federation.simulate import Training, simulate
from quietbit.mechanism.forecast import Verdict
from quietbit.mechanism.registry import families, family, identity_of
from quietbit.target import Trust, Unit
from quietbit_lab.task.vectors import VectorMean
from refusals import refuses

FACTOR = 1.5  # what a simulated error may be off by
CLIP = 0.5
# (parameters, clients, cohort, rounds, epsilon, adjacency, trust, mechanism, verdict)
SITUATIONS = {
    "many clients, a small model": (
        100,
        6000,
        3000,
        2,
        8.0,
        "zero-out",
        "local",
        "gaussian",
        Verdict.USEFUL,
    ),
    "a seed each": (256, 200, 200, 1, 4.0, "replace-one", "local", "vmvu", Verdict.UNCERTAIN),
    "one bit each": (650, 300, 100, 15, 8.0, "zero-out", "local", "imvu", Verdict.UNCERTAIN),
    "the same behind masks": (
        650,
        600,
        200,
        15,
        8.0,
        "zero-out",
        "secure-aggregation",
        "imvu",
        Verdict.USEFUL,
    ),
    "a trusted server": (
        650,
        300,
        100,
        15,
        2.0,
        "replace-one",
        "central",
        "gaussian",
        Verdict.UNCERTAIN,
    ),
    "few clients, a larger model": (
        2000,
        100,
        20,
        5,
        1.0,
        "replace-one",
        "local",
        "gaussian",
        Verdict.HOPELESS,
    ),
}


@lru_cache(maxsize=8)
def asked(dimension, clients, cohort, rounds, epsilon, adjacency, trust):
    return compare(
        quietbit.Ball("l2", dimension),
        epsilon=epsilon,
        delta=1e-5,
        adjacency=adjacency,
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        trust=trust,
    )


@lru_cache(maxsize=8)
def simulated(
    dimension, clients, cohort, rounds, epsilon, adjacency, trust, mechanism, length=0.9 * CLIP
):
    """The run in which every update is sent, and how far what it learnt is from the clipped
    vectors' mean, in clips.
    """
    plan = flat_plan(
        mechanism,
        clip=CLIP,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=1e-5,
        trust=trust,
        cohort=cohort,
        rng="seeded",
        seed=7,
    )
    problem = VectorMean(dimension, clients, length=length)
    run = simulate(problem, plan, Training(lr=1 / rounds, rounds=rounds, momentum=0.0))
    assert run.status == "finished", run.reason
    clipped = problem.mean() * min(1.0, CLIP / length)  # all have this length
    return run, float(np.linalg.norm(run.parameters - clipped)) / CLIP


LONG = ("many clients, a small model", "a trusted server", "few clients, a larger model")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in SITUATIONS],
)
def test_a_simulation_confirms_the_error_and_the_verdict(name):
    """With 100 coordinates or more a factor 1.5 either way is missed by chance less often than once
    in 10^9.
    """
    *request, mechanism, verdict = SITUATIONS[name]
    row = next(row for row in asked(*request).rows if row.name == mechanism)
    assert row.expected.verdict is verdict
    run, found = simulated(*request, mechanism)
    assert row.expected.run_noise / FACTOR <= found <= row.expected.run_noise * FACTOR
    assert run.bytes_per_client == row.payload_bytes
    assert run.guarantee.epsilon_upper <= request[4]
    if verdict is Verdict.USEFUL:
        assert found < 0.2
    if verdict is Verdict.HOPELESS:
        assert found > 1.0, "zero would have been the better answer"


def test_every_family_has_its_row_and_says_why_where_there_is_none():
    found = asked(650, 300, 100, 15, 8.0, "zero-out", None)
    local = {row.name: row for row in found.rows if row.trust is Trust.LOCAL}
    assert (
        set(local)
        == {word for word in families() if not family(word).baseline}
        == {"imvu", "vmvu", "gaussian"}
    )
    assert {row.trust for row in found.rows} == {
        Trust.LOCAL,
        Trust.SECURE_AGGREGATION,
        Trust.CENTRAL,
    }
    for row in found.rows:
        if row.mechanism is not None:
            assert row.guarantee.epsilon_upper <= found.target.epsilon
            assert row.guarantee.trust is row.trust
            assert row.payload_bytes > 0
    assert (found.rounds, found.target.releases) == (15, 5)


def test_auto_is_the_best_row_of_its_trust():
    found = asked(650, 300, 100, 15, 8.0, "zero-out", None)
    ball = quietbit.Ball("l2", 650)
    auto = quietbit.calibrate(
        "auto", ball=ball, epsilon=8.0, delta=1e-5, adjacency="zero-out", releases=5
    )
    assert identity_of(auto.mechanism) == identity_of(found.best("local").mechanism)
    assert auto.reason.startswith(f"auto took {found.best('local').name}: ")
    for trust in Trust:
        best = found.best(trust)
        if best is None:
            continue
        plan = flat_plan(
            "auto",
            clip=CLIP,
            adjacency="zero-out",
            epsilon=8.0,
            trust=trust,
            cohort=100,
            releases=5,
            coordinates=best.coordinates if trust is Trust.SECURE_AGGREGATION else None,
        )
        assert identity_of(plan.mechanism_for(650)) == identity_of(best.mechanism)


def test_nothing_within_reach_is_an_answer_and_auto_says_why():
    given = {"epsilon": 1e-9, "delta": 0.0, "adjacency": "zero-out"}
    found = compare(10, cohort=2, releases=1000, **given, norm="l1")
    assert found.best("local") is None
    assert all(row.refusal for row in found.rows)
    with pytest.raises(InvalidParameter, match=r"No mechanism reaches epsilon 1e-09 here .*imvu: "):
        quietbit.calibrate("auto", ball=quietbit.Ball("l1", 10), releases=1000, **given)


def test_rounds_and_releases_follow_from_each_other():
    given = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "trust": "central",
        "clients": 1000,
    }
    assert compare(10, cohort=300, rounds=10, **given).target.releases == 3
    assert (
        compare(10, cohort=300, rounds=11, **given).target.releases == 4
    )  # some client goes once more
    assert compare(10, cohort=300, releases=4, **given).rounds == 13
    assert compare(10, cohort=1000, releases=4, **given).rounds == 4


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rounds": 3, "releases": 3}, "rounds or releases"),
        ({"rounds": None}, "rounds or releases"),
        ({"cohort": 0}, "cohort"),
        ({"clients": 5}, "clients"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"adjacency": "near"}, "adjacency"),
        ({"trust": "nobody"}, "trust"),
        ({"norm": "l3"}, "norm"),
    ],
)
def test_what_has_no_meaning_is_refused(change, name):
    given = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "zero-out",
        "cohort": 10,
        "rounds": 2,
        **change,
    }
    with refuses(name):
        compare(10, **given)


def test_the_dimension_of_a_model_is_what_it_trains():
    torch = pytest.importorskip("torch", reason="modules are torch's")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    assert dimension_of(model) == 15 + 8
    for one in model[0].parameters():
        one.requires_grad = False
    assert dimension_of(model) == 8
    assert dimension_of(model.state_dict()) == 15 + 8
    assert dimension_of([np.zeros((2, 2)), {"a": np.zeros(3, dtype=np.float32)}]) == 7
    with pytest.raises(InvalidParameter, match="array"):
        dimension_of("resnet")


def test_a_baseline_is_never_compared_nor_is_a_mean_without_a_unit_the_best(monkeypatch):
    """Even where it is the most accurate of all: here the Gaussian under another word."""
    known = {word: family(word) for word in families()}
    known["rival"] = attrs.evolve(known["gaussian"], name="rival", baseline=True)
    known["sign"] = attrs.evolve(known["sign"], baseline=False)
    monkeypatch.setattr("quietbit.mechanism.registry.families", lambda: tuple(known))
    monkeypatch.setattr("quietbit.mechanism.registry._loaded", known.__getitem__)
    monkeypatch.setattr("quietbit.mechanism.calibrate.families", lambda: ("sign", "rival"))
    target = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out"}
    found = compare(17, **target, cohort=10, rounds=2, trust="local")
    assert [row.name for row in found.rows] == ["sign"]
    assert found.rows[0].noise < math.inf
    assert found.best("local") is None, "a sign has no unit"
    with pytest.raises(InvalidParameter, match="No mechanism reaches"):
        quietbit.calibrate("auto", ball=quietbit.Ball("l2", 17), **target)


SITES = {
    "epsilon": 4.0,
    "delta": 1e-5,
    "adjacency": "zero-out",
    "cohort": 5,
    "rounds": 10,
    "unit": "sample",
}


@pytest.mark.parametrize("steps", [None, 10])
def test_samples_of_sites_are_compared_by_the_mechanisms_that_a_plan_has_for_them(steps):
    found = compare(650, **SITES, samples=280, sampling_rate=0.25, local_steps=steps)
    more = {} if steps is None else {"steps": steps, "learning_rate": 1.0}
    for row in found.rows:
        plan = engine_plan(
            row.name,
            clip=1.0,
            samples={"dataset_size": 280, "sampling_rate": 0.25, **more},
            releases=10,
            epsilon=4.0,
            adjacency="zero-out",
        )
        planned = plan.mechanism_for(650)
        assert row.mechanism.error().squared == pytest.approx(planned.error().squared, rel=0.05)
        assert row.guarantee.unit is Unit.SAMPLE
        assert row.guarantee.epsilon_upper <= 4.0
        assert row.trust is Trust.LOCAL
    assert found.best("local").name == "gaussian"
    assert found.best("local").expected.verdict is Verdict.USEFUL
    clients = compare(650, **{**SITES, "unit": "client"}, trust="local")
    assert (
        clients.best("local").noise > 20 * found.best("local").noise
    )  # what a hospital would have been told


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "samples"),
        ({"samples": 0}, "samples"),
        ({"samples": 10, "sampling_rate": 1.5}, "sampling_rate"),
        ({"samples": 10, "local_steps": 0}, "local_steps"),
        ({"samples": 10, "trust": "central"}, "trust"),
        ({"unit": "client", "samples": 10}, "samples"),
        ({"unit": "client", "sampling_rate": 0.1}, "sampling_rate"),
        ({"unit": "client", "local_steps": 3}, "local_steps"),
    ],
)
def test_numbers_of_samples_that_make_no_sense_are_refused(given, name):
    with refuses(name):
        compare(650, **{**SITES, **given})
