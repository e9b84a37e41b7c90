"""What the server writes beside the model, and a node that would encode with something else."""

from dataclasses import replace

import pytest

from quietbit._validate import InvalidParameter
from quietbit.flower.request import Request
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm

MECHANISM = Gaussian(Ball(Norm.L2, 1.5, 3), 2.0)
REQUEST = Request.of(4, MECHANISM)


def test_it_reads_what_it_writes():
    assert Request.from_record(REQUEST.to_record()) == REQUEST
    REQUEST.expect(MECHANISM)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dimension": 4}, "dimension of the server's mechanism must be 3, got 4"),
        ({"clip": 2.0}, r"clip of the server's mechanism must be 1\.5, got 2\.0"),
        ({"identity": bytes(32)}, r"identity of the server's mechanism must be .*, this node's, got '0000"),
    ],
)
def test_another_mechanism_is_refused(change, says):
    with pytest.raises(InvalidParameter, match=says):
        replace(REQUEST, **change).expect(MECHANISM)


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"round": 1},
        REQUEST.to_record() | {"version": 2},
        REQUEST.to_record() | {"round": 0},
        REQUEST.to_record() | {"identity": "x"},
        REQUEST.to_record() | {"dimension": 2.5},
    ],
)
def test_another_record_is_refused(record):
    with pytest.raises(InvalidParameter):
        Request.from_record(record)
