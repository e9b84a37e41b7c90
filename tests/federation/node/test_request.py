"""Plans of masked sums: of everything that all clients were asked alike."""

import json
from dataclasses import fields, replace

from federation.node.makers import MECHANISM
from federation.secagg.kit import identity
from plans import engine_plan
from quietbit.federation.client import read_request
from quietbit.federation.messages import RECORD, SUM, NodeName, request_record, sum_request
from quietbit.federation.part import Scope
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.rotation import round_number
from quietbit.node.request import Request, SumPart, run_name, sum_plan
from refusals import refuses

LARGER = InterpolatedMVU(MECHANISM.design, Ball("l2", 43))


def asked(clients=6, threshold=4, server="honest-but-curious", run=1, number=1, honest=2, **near):
    part = SumPart("keys", clients, 1, threshold, honest, server, **near)
    return Request(run, number, 9, 50, "a description", 4.0, 1e-5, "zero-out", 3, part)


def test_a_plan_is_of_everything_that_clients_must_agree_on():
    """Every field but the node and the step is in the terms, new fields included."""
    one = asked(run=2**63 + 5, number=3)
    plan = sum_plan(one, MECHANISM, None)
    assert (plan.clients, plan.threshold, plan.dimension, plan.bits) == (6, 4, 42, 3)
    others = {
        "run": 1,
        "round": 4,
        "dimension": 51,
        "mechanism": "another",
        "epsilon": 5.0,
        "delta": 1e-6,
        "adjacency": "replace-one",
        "unit": "sample",
        "clip": 2.0,
    }
    parts = {"clients": 7, "threshold": 5, "honest": 3}
    changed = [replace(one, **{name: value}) for name, value in others.items()]
    for name, value in parts.items():
        changed.append(replace(one, sum=replace(one.sum, **{name: value})))
    contexts = {sum_plan(other, MECHANISM, None).context for other in changed}
    contexts |= {plan.context, sum_plan(one, LARGER, None).context}
    assert len(contexts) == len(changed) + 2
    alike = {"node": 10, "client": 4, "sum": replace(one.sum, step="vector", number=2, table=b"x")}
    assert set(alike) | set(others) == {field.name for field in fields(Request)}
    assert sum_plan(replace(one, **alike), MECHANISM, None).context == plan.context
    told = json.loads(plan.terms)
    assert set(told) == set(others) | {"sum"}
    known = {field.name for field in fields(SumPart)}
    assert set(told["sum"]) == known - {"step", "number", "table"}


def test_the_digest_of_a_plan_is_that_of_earlier_versions():
    """Everything that clients derive or sign depends on it."""
    plan = sum_plan(asked(), MECHANISM, None)
    assert plan.context.hex() == (
        "64f38c6d86c036828a70a75ba4030df997d9ddaffbb99d9a079c66a98084c481"
    )
    members = tuple(identity(number).public for number in range(1, 6))
    one = asked(5, server="active", run=2**63 + 5, number=3)
    plan = sum_plan(replace(one, clip=0.7, unit="sample"), MECHANISM, members)
    assert plan.context.hex() == (
        "269919a998ee34178000a0438692311c2fbb0b733c8fa227e233581491423554"
    )


def test_a_server_makes_the_plan_that_its_clients_make():
    """Of a clip that is given as a whole number, too."""
    sums = {"threshold": 4, "adversary": "honest-but-curious"}
    given = {"clip": 1, "adjacency": "zero-out", "epsilon": 8, "design_epsilon": 0.3}
    plan = engine_plan("imvu", **given, secure_aggregation=sums)
    section = plan.secure_aggregation
    mechanism = plan.mechanism_for(50)
    record = request_record(3, mechanism, plan.clip)
    scope = Scope(2**63 + 5, 3, mechanism, clip=plan.clip)
    server = section.part(plan, print).collector(scope, record["mechanism"]).plan_of(6, None)
    records = {RECORD: record, SUM: sum_request("keys", 6, 1)}
    parts = [section.client(plan, "")]
    one = read_request(records, plan, parts, NodeName(2**63 + 5, 7))
    assert server == sum_plan(one, one.proposed().mechanism, None)


def test_sizes_that_the_threshold_does_not_fit_are_refused():
    assert sum_plan(asked(), MECHANISM, None).most_colluders == 3
    for clients in (3, 8):
        with refuses("threshold", 4):
            sum_plan(asked(clients), MECHANISM, None)
    members = tuple(identity(number).public for number in range(1, 7))
    for clients in (3, 6):
        with refuses("threshold", 4):
            sum_plan(asked(clients, server="active"), MECHANISM, members[:clients])
    assert sum_plan(asked(5, server="active"), MECHANISM, members[:5]).most_colluders == 2
    with refuses("sum", None):
        sum_plan(replace(asked(), sum=None), MECHANISM, None)


def test_rows_change_with_run_and_round():
    found = {round_number(run_name(run), number) for run in range(20) for number in range(1, 21)}
    assert len(found) == 400
    assert max(found) < 2**64


def test_steps_belong_to_their_server():
    assert SumPart("confirm", 5, 1, 4, 2, "active").active
    for step in ("confirm", "identity", "more"):
        with refuses("step of the sum", step):
            SumPart(step, 5, 1, 4, 2, "honest-but-curious")
    with refuses("server model", "kind"):
        SumPart("keys", 5, 1, 4, 2, "kind")
