import numpy as np
import pytest

from quietbit.errors import InvalidParameter
from quietbit.secagg.plan import MASKED_HEADER_SIZE, ServerModel, SumPlan, bits_for
from refusals import refuses


@pytest.mark.parametrize(
    ("clients", "dimension"), [(2, 1), (3, 9), (1000, 67), (100_000, 3), (7, 70_001)]
)
def test_packed_size_is_exact_and_packing_is_undone(clients, dimension):
    plan = SumPlan(clients, clients // 2 + 1, dimension, b"r")
    values = np.random.default_rng(1).integers(0, 2**plan.bits, plan.width, dtype=np.uint32)
    data = plan.pack(2, values)
    assert 64 <= (plan.width - dimension) * plan.bits < 64 + plan.bits
    assert (
        len(data)
        == plan.payload_size
        == MASKED_HEADER_SIZE + -(-bits_for(clients) * plan.width // 8)
    )
    assert (plan.unpack(2, data) == values).all()
    assert MASKED_HEADER_SIZE == 24


def test_bits_are_those_of_the_largest_sum():
    assert [bits_for(n) for n in (1, 2, 3, 4, 7, 8, 1000, 100_000)] == [1, 2, 2, 3, 3, 4, 10, 17]


def test_refusals():
    for threshold in (0, 5, 11):
        with refuses("threshold", threshold):
            SumPlan(10, threshold, 4, b"r")
    with refuses("round_name", b""):
        SumPlan(10, 6, 4, b"")
    plan = SumPlan(3, 2, 3, b"r")
    data = plan.pack(1, np.zeros(3 + 32, dtype=np.uint32))
    for bad in (data[:-1], data + b"\0", b"X" + data[1:], data[:-1] + b"\xc0"):
        with pytest.raises(InvalidParameter):
            plan.unpack(1, bad)
    with refuses("header of the masked vector"):
        plan.unpack(2, data)


def members(count):
    return tuple(number.to_bytes(32, "big") for number in range(count))


@pytest.mark.parametrize("clients", [2, 3, 4, 9, 10, 11, 100])
def test_a_server_that_lies_needs_more_than_two_thirds(clients):
    for threshold in range(1, clients + 2):
        fits = {
            None: clients // 2 < threshold <= clients,
            members(clients): 3 * threshold > 2 * clients and threshold <= clients,
        }
        for named, fine in fits.items():
            if fine:
                plan = SumPlan(clients, threshold, 1, b"r", members=named, terms=b"m")
                # Two quorums of t, less all colluders, still have a member in common.
                assert plan.most_colluders == (
                    2 * threshold - clients - 1 if named else threshold - 1
                )
                assert not plan.protects(plan.most_colluders + 1, 2)
            else:
                with refuses("threshold", threshold):
                    SumPlan(clients, threshold, 1, b"r", members=named, terms=b"m")


def test_members_are_different_keys_and_part_of_the_context():
    plan = SumPlan(4, 3, 5, b"r", members=members(4), terms=b"m")
    assert plan.server is ServerModel.ACTIVE
    assert SumPlan(4, 3, 5, b"r").server is ServerModel.HONEST_BUT_CURIOUS
    keys = members(5)
    others = [None, keys[1:], (keys[1], keys[0], *keys[2:4])]
    assert (
        len(
            {
                plan.context,
                *(SumPlan(4, 3, 5, b"r", members=other, terms=b"m").context for other in others),
            }
        )
        == 4
    )
    for bad in (keys, keys[:3], (*keys[:3], keys[0]), (*keys[:3], b"short"), (*keys[:3], 7)):
        with refuses("members"):
            SumPlan(4, 3, 5, b"r", members=bad, terms=b"m")
    assert "members" not in repr(plan)


def test_lists_of_clients_are_bitmaps():
    plan = SumPlan(11, 6, 1, b"r")
    for chosen in (set(), {1}, {8, 9, 11}, set(range(1, 12))):
        assert plan.from_bitmap(plan.bitmap(chosen)) == chosen
    for bad in (b"", b"\0", bytes(3), b"\0\x08"):
        with pytest.raises(InvalidParameter):
            plan.from_bitmap(bad)


def test_a_thousand_clients_send_less_than_floats():
    """Keys and shares do not grow with the model, and are most of a small one's bytes."""
    plan = SumPlan(1000, 950, 39_700, b"r", members=members(1000), terms=b"m")
    assert plan.uplink_size < 0.92 * 4 * 39_700
    assert plan.uplink_size - plan.payload_size < 97_000
    assert plan.protects(50, 900)
    assert not plan.protects(50, 901)
