"""The only way out: noted first, one release of one size, and refusals without data."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from federation.node.makers import (
    DIMENSION,
    MECHANISM,
    NOISY,
    books,
    declines,
    gate_of,
    keeper,
    policy,
    request,
)
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.errors import InvalidParameter
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.projected import Projected
from quietbit.node import ledger
from quietbit.node.budget import account_of
from quietbit.node.ledger import LedgerError
from quietbit.node.refusal import (
    BudgetSpent,
    NotAllowed,
    Noted,
    Reason,
    Refusal,
    refusal_of,
)
from quietbit.node.request import Request, run_name
from quietbit.privacy.account import Account
from quietbit.target import Adjacency, Target
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from refusals import refuses

UPDATE = np.linspace(-0.2, 0.3, DIMENSION)


def payload(data):
    return bytes(Framed.from_bytes(data).payload)


WRONG = {
    "nothing": None,
    "NaN": [np.full(DIMENSION, math.nan)],
    "one NaN": [np.where(np.arange(DIMENSION) == 7, math.nan, UPDATE)],
    "infinite": [np.full(DIMENSION, -math.inf)],
    "too short": [UPDATE[:-1]],
    "too long": [np.zeros(DIMENSION + 1)],
    "whole numbers": [np.zeros(DIMENSION, dtype=np.int64)],
    "words": ["update"],
    "an object": object(),
    "empty": [],
}


@pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("mechanism", [MECHANISM, NOISY], ids=["imvu", "gaussian"])
def test_whatever_goes_wrong_is_one_release_of_zero(tmp_path, what, mechanism):
    """Bit for bit what an update of zeros gives, from the same randomness."""
    held = keeper(tmp_path, seed=5)
    data = held.accept(request(1, mechanism)).release(WRONG[what])
    assert payload(data) == Uplink(mechanism).send(np.zeros(DIMENSION), seeded_client_rng(5)(0, 0))
    usual = held.accept(request(2, mechanism)).release([UPDATE])
    assert len(data) == len(usual)
    assert books(tmp_path).releases == 2


def test_the_ledger_is_written_before_the_app_could_train(tmp_path, monkeypatch):
    accepted = keeper(tmp_path).accept(request())
    assert books(tmp_path).releases == 1
    drawn = []
    send = Uplink.send
    monkeypatch.setattr(
        Uplink, "send", lambda *args: drawn.append(books(tmp_path).releases) or send(*args)
    )
    accepted.release([UPDATE])
    assert drawn == [1]
    with pytest.raises(Noted):
        accepted.release([UPDATE])


def test_counts_in_all_and_per_day(tmp_path, monkeypatch):
    held = keeper(tmp_path, epsilon=1e4, releases=5, releases_per_day=2)
    clock, running = time.time(), 1000.0
    monkeypatch.setattr(time, "time", lambda: clock)
    monkeypatch.setattr(time, "clock_gettime", lambda _: running)
    for number in (1, 2):
        held.accept(request(number))
    declines(held, BudgetSpent, request(3))
    clock -= 10 * 86400  # a clock that is put back gives nothing back
    declines(held, BudgetSpent, request(3))
    clock += (
        21 * 86400
    )  # and one that is put forward nothing either: the machine has not been running so long
    declines(held, BudgetSpent, request(3))
    running += 86400
    for number in (3, 4):
        held.accept(request(number))
    monkeypatch.setattr(
        ledger, "_boot", lambda: "the next start"
    )  # after which only the clock is left
    clock, running = clock + 86401, 5.0
    held.accept(request(5))
    declines(held, BudgetSpent, request(6))


def test_a_least_price_bounds_requests_that_cost_nearly_nothing(tmp_path):
    faint = InterpolatedMVU(solve(DesignSpec(2, 1, 0.01)), Ball(Norm.L2, DIMENSION))
    for floor, most in ((0.0, 30), (0.5, 17)):
        folder = tmp_path / str(floor)
        folder.mkdir()
        held, answers = keeper(folder, epsilon=4.0, least_epsilon=floor), 0
        for number in range(1, 31):
            try:
                held.accept(request(number, faint, clip=1e-3))
            except BudgetSpent:
                break
            answers += 1
        assert answers <= most
        assert (answers == 30) == (floor == 0.0)


def test_a_change_of_the_policy_prices_the_past_anew(tmp_path):
    keeper(tmp_path, adjacency="zero-out").accept(request(adjacency="zero-out"))
    gate_of(policy(tmp_path)).accept(request(2))
    found = books(tmp_path)
    cap = Target(8.0, 1e-5, Adjacency.REPLACE_ONE)
    expected = Account(cap, "adaptive").spend(MECHANISM.privacy(Adjacency.REPLACE_ONE), 2)
    assert account_of(found, cap) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "3",
        '{"kind":"os"}',
        '{"kind":"Ball","norm":"l2","radius":1.0,"dimension":3}',
        "[" * 5000,
        '{"kind":"Gaussian"}',
        '{"kind":"Gaussian","domain":3,"multiplier":2}',
        "x" * 300_000,
        '{"kind":["Gaussian"]}',
        '{"kind":"InterpolatedMVU","design":{"design":"abc"},"domain":{"kind":"Ball"}}',
    ],
)
def test_descriptions_of_no_mechanism_are_refused(tmp_path, text):
    with pytest.raises((InvalidParameter, NotAllowed)):
        keeper(tmp_path).accept(replace(request(), mechanism=text))
    assert books(tmp_path).count == 1


def test_servers_hear_values_and_no_paths_or_totals(tmp_path):
    for error in (
        LedgerError(f"The ledger {tmp_path} is gone after 17 releases."),
        OSError("secret"),
        MemoryError(),
    ):
        assert refusal_of(error) == Refusal(Reason.UNUSABLE)
    assert refusal_of(BudgetSpent("17 of 20 are spent", of_node=True)) == Refusal(
        Reason.BUDGET_SPENT
    )
    assert (
        refusal_of(InvalidParameter("epsilon must be above 0.")).detail
        == "epsilon must be above 0."
    )
    for reason in Reason:
        if reason is not Reason.INVALID:
            with pytest.raises(InvalidParameter):
                Refusal(reason, "17 of 20 are spent")
        assert Refusal.read_reason(Refusal(reason).to_text()) is reason
    assert Refusal.read_reason("an engine's own error") is None


def test_requests_survive_json_and_others_are_refused():
    asked = request(3)
    assert Request.from_json(asked.to_json()) == asked
    good = asked.to_json()
    for change in (
        {"run": -1},
        {"run": 2**64},
        {"round": 0},
        {"round": math.nan},
        {"dimension": 2.5},
        {"epsilon": 0},
        {"epsilon": math.nan},
        {"delta": 2},
        {"adjacency": "none"},
        {"client": -1},
        {"more": 1},
        {"sum": 3},
        {"sum": {}},
        {"mechanism": 3},
    ):
        with pytest.raises(InvalidParameter):
            Request.from_json(good | change)
    for values in (None, [], {}, "x"):
        with pytest.raises(InvalidParameter):
            Request.from_json(values)


def test_rows_that_all_nodes_share_are_those_of_the_requests_round(tmp_path):
    """A server that asks twice about the same rows, in different rounds, is refused."""
    inner = Gaussian(Ball(Norm.L2, 16), 4.0)
    shared = Projected(inner, Ball(Norm.L2, DIMENSION), rows=0)
    gate = keeper(tmp_path)
    for wrong in (shared, shared.for_round(run_name(7), 2), shared.for_round(run_name(8), 3)):
        with refuses("mechanism"):
            gate.accept(request(3, wrong))
    assert books(tmp_path).releases == 0
    gate.accept(request(3, shared.for_round(run_name(7), 3)))
