"""A node's ledger: composition over mechanisms and runs, budgets, rounds, and a text that cannot be changed."""

import json

import pytest

from quietbit._validate import InvalidParameter, QuietbitError
from quietbit.design.solve import solve
from quietbit.design.spec import DesignSpec
from quietbit.flower.budget import Budget
from quietbit.flower.node_ledger import AnsweredBefore, BudgetSpent, NodeLedger, UnreadableLedger, read_ledger
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.privacy.ledger import Ledger
from quietbit.privacy.release import Release

BALL = Ball(Norm.L2, 1.0, 20)
FIRST, SECOND = InterpolatedMVU(solve(DesignSpec(2, 1, 2.0)), BALL), Gaussian(BALL, 2.0)
ADJACENCY = Adjacency.REPLACE_ONE


def released(curve, adjacency, trust=Trust.LOCAL):
    return Release(curve, adjacency, Unit.CLIENT, trust)


def example() -> NodeLedger:
    return NodeLedger().record(FIRST, 1, 1).record(FIRST, 1, 2).record(SECOND, 2, 1)


def test_it_composes_over_mechanisms_and_runs():
    ledger = Ledger(Unit.CLIENT, ADJACENCY, Trust.LOCAL)
    first, second = (released(one.privacy(ADJACENCY), ADJACENCY) for one in (FIRST, SECOND))
    expected = ledger.record(first, 2).record(second, 1).guarantee(1e-5)
    assert example().guarantee(1e-5, ADJACENCY) == expected
    assert example().releases == 3


def test_an_empty_ledger_has_spent_nothing():
    assert NodeLedger().guarantee(1e-5, ADJACENCY).epsilon_upper == 0.0


def test_a_round_is_answered_once_and_in_order():
    with pytest.raises(
        InvalidParameter, match=r"round asked for in run 1 must be above 2, the last one answered, got 2"
    ):
        example().record(FIRST, 1, 2)
    with pytest.raises(AnsweredBefore, match="got 1"):
        example().record(SECOND, 1, 1)
    assert example().record(FIRST, 3, 1).releases == 4


def test_a_budget_is_held_against_everything():
    spent = example().guarantee(1e-5, ADJACENCY).epsilon_upper
    example().check_budget(Budget(spent, 1e-5, ADJACENCY, "the run"))
    with pytest.raises(BudgetSpent, match=r"The budget of this node, .*replace-one\), is spent: .* release number 3"):
        example().check_budget(Budget(spent * (1 - 1e-12), 1e-5, ADJACENCY, "this node"))


def test_the_text_is_read_as_it_was_written():
    text = example().to_text()
    assert NodeLedger.from_text(text, "it") == example()
    assert NodeLedger.from_text(NodeLedger().to_text(), "it") == NodeLedger()
    assert text.isascii()


def test_a_step_that_hands_out_shares_is_answered_once_and_in_order():
    noted = example().record_step(1, 3, 2).record_step(1, 3, 4).record_step(2, 1, 2)
    for number, step in ((3, 4), (3, 2), (2, 4)):
        with pytest.raises(AnsweredBefore, match="must come after step 4 of round 3, the last one answered"):
            noted.record_step(1, number, step)
    assert noted.record_step(1, 4, 2).record(FIRST, 1, 4).last_steps == ((1, (4, 2)), (2, (1, 2)))
    assert NodeLedger.from_text(noted.to_text(), "it") == noted
    assert "last_steps" not in example().to_text()  # as ledgers were written before there were steps
    assert example().is_behind(noted)
    assert not noted.is_behind(example())
    content = json.loads(noted.to_text())
    del content["last_steps"]
    with pytest.raises(UnreadableLedger, match="was changed"):
        NodeLedger.from_text(json.dumps(content), "it")


def test_sums_are_priced_as_sums_or_as_if_the_masks_had_failed():
    mixed = example().record(FIRST, 3, 1, honest=4).record(FIRST, 3, 2, honest=4).record(FIRST, 3, 3, honest=9)
    assert (mixed.releases, mixed.honest, len(mixed.spent)) == (6, 9, 4)
    near = Adjacency.ZERO_OUT
    own, far = released(FIRST.privacy(near), near), released(SECOND.privacy(near), near)
    ledger = Ledger(Unit.CLIENT, near, Trust.LOCAL)
    alone = ledger.record(own, 2).record(far, 1).record(own, 2).record(own, 1).guarantee(1e-5)
    assert mixed.guarantee(1e-5, near) == alone
    ledger = Ledger(Unit.CLIENT, near, Trust.SECURE_AGGREGATION).record(own, 2).record(far, 1)
    four, nine = (FIRST.sum_privacy(count, near) for count in (4, 9))
    together = ledger.record(four, 2).record(nine, 1).guarantee(1e-5)
    assert mixed.guarantee(1e-5, near, Trust.SECURE_AGGREGATION) == together
    assert together.epsilon_upper < alone.epsilon_upper
    assert NodeLedger.from_text(mixed.to_text(), "it") == mixed
    budget = Budget(together.epsilon_upper, 1e-5, near, "the run", Trust.SECURE_AGGREGATION)
    mixed.check_budget(budget)
    with pytest.raises(BudgetSpent, match=r"secure-aggregation with 9 honest clients\), is spent"):
        mixed.record(FIRST, 3, 4, honest=9).check_budget(budget)
    with pytest.raises(BudgetSpent, match=r"zero-out\), is spent"):
        mixed.check_budget(Budget(together.epsilon_upper, 1e-5, near, "this node"))
    with pytest.raises(InvalidParameter, match="local or secure-aggregation"):
        mixed.guarantee(1e-5, near, Trust.CENTRAL)
    with pytest.raises(QuietbitError, match="InterpolatedMVU"):
        NodeLedger().record(SECOND, 1, 1, honest=4).guarantee(1e-5, near, Trust.SECURE_AGGREGATION)


@pytest.mark.parametrize("change", ["releases", "rounds", "digest", "format", "cut", "empty", "list", "more"])
def test_a_text_that_was_changed_is_refused(change):
    content = json.loads(example().to_text())
    if change == "releases":
        content["spent"][0][1] = 1
    elif change == "rounds":
        content["last_rounds"] = {}
    elif change == "digest":
        del content["digest"]
    elif change == "format":
        content["format"] = "quietbit-design"
    elif change == "more":
        content["note"] = ""
    text = {"cut": example().to_text()[:-9], "empty": "", "list": "[]"}.get(change, json.dumps(content))
    with pytest.raises(UnreadableLedger, match="it "):
        NodeLedger.from_text(text, "it")


def test_files(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text(example().to_text())
    assert read_ledger(path) == example()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableLedger, match="Cannot read the ledger"):
        read_ledger(path)
    with pytest.raises(UnreadableLedger, match="Cannot read the ledger"):
        read_ledger(tmp_path)
    with pytest.raises(UnreadableLedger, match="Cannot read the ledger"):
        read_ledger(tmp_path / "none.json")
