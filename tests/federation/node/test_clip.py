"""A server that asks at another clip: the owner's range decides, and a sum is bound to the clip."""

import math
from dataclasses import replace

import pytest

from federation.node.makers import DIMENSION, MECHANISM, books, keeper, request
from quietbit import InvalidParameter
from quietbit.federation.client import read_request
from quietbit.federation.messages import RECORD, NodeName, request_record
from quietbit.federation.plan import Plan
from quietbit.node.request import SumPart, description_of, sum_plan
from refusals import refuses

GIVEN = {
    "clip": 1.0,
    "epsilon": 3.0,
    "adjacency": "zero-out",
    "releases": 1,
}


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, "1", None, True, 1e28, 1e-28])
def test_what_is_no_clip_is_refused_when_the_request_is_read(clip):
    with refuses("clip"):
        request(clip=clip)


def test_a_radius_in_the_description_is_no_way_around_the_policy(tmp_path):
    node = keeper(tmp_path)
    with pytest.raises(InvalidParameter, match="the clip goes beside the mechanism"):
        node.accept(replace(request(), mechanism=description_of(MECHANISM, 1e9)))
    assert books(tmp_path).releases == 0


def test_a_request_of_an_earlier_version_is_refused_with_the_remedy():
    plan = Plan("imvu", **GIVEN)
    record = request_record(1, MECHANISM)
    del record["clip"]
    with pytest.raises(InvalidParameter, match="same version of quietbit") as refusal:
        read_request({RECORD: record}, plan, (), NodeName(7, 11))
    assert refusal.value.name == "clip"


def test_all_that_clients_of_a_sum_sign_is_bound_to_the_clip():
    part = SumPart("keys", 6, 1, 4, 3, "honest-but-curious")
    plans = [sum_plan(request(sum=part, clip=clip), MECHANISM, None) for clip in (0.5, 1.0, 2.0)]
    assert len({plan.context for plan in plans}) == 3
    assert {plan.dimension for plan in plans} == {DIMENSION}
