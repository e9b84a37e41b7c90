"""Divergences in the ledger's database: found once, and never those of other code."""

import pytest

from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node import budget, costs
from quietbit.node.budget import account_of
from quietbit.node.costs import SavedCosts, cost_version, costs_beside
from quietbit.node.ledger import FileLedger, LedgerError, mechanism_line, release_line
from quietbit.node.request import ProposedMechanism, description_of
from quietbit.privacy import account, aggregate
from quietbit.target import Target, Trust

HONEST = 3
CAP = Target(8.0, 1e-5, "replace-one", trust=Trust.SECURE_AGGREGATION)


def mechanism():
    return InterpolatedMVU(solve(DesignSpec(2, 1, 0.3)), Ball(Norm.L2, 42))


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a sum."""
    found = FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    proposed = ProposedMechanism.read(description_of(mechanism()))
    lines = [
        mechanism_line(proposed.identity, proposed.description),
        release_line(proposed.identity, HONEST, "7", 1),
    ]
    found.update(lambda _: lines)
    return found


@pytest.fixture
def fresh(monkeypatch):
    """Forget everything that this process has computed, as a new process would have."""

    def forget():
        budget._COSTS.clear()
        costs_beside.cache_clear()
        for cached in (
            account._shares,
            account._divergences,
            account._copies,
            aggregate._constant,
        ):
            cached.cache_clear()

    forget()
    yield forget
    forget()


def total(ledger):
    saved = costs_beside(ledger.path)
    found = account_of(ledger.read(), CAP, HONEST, 0.001, saved=saved).epsilon()
    saved.save()
    return found


def computed(monkeypatch):
    """Count the divergences that are computed, not looked up."""
    calls = []
    call = aggregate.AggregateConstant.__call__
    monkeypatch.setattr(
        aggregate.AggregateConstant, "__call__", lambda *args: calls.append(args) or call(*args)
    )
    return calls


def test_a_second_process_computes_nothing_and_finds_the_same(ledger, fresh, monkeypatch):
    calls = computed(monkeypatch)
    first = total(ledger)
    assert len(calls) > 50
    fresh()
    calls.clear()
    assert total(ledger) == first  # to the last digit
    assert calls == []


def found(ledger, *names):
    """How many of these bounds had to be computed by a new process."""
    calls = []
    saved = SavedCosts(ledger.path)
    for name in names:
        assert saved.cached(name, lambda alpha: calls.append(alpha) or alpha)(2.0) == 2.0
    saved.save()
    return len(calls)


def test_costs_do_not_outlive_the_code_that_found_them(ledger, monkeypatch):
    assert [found(ledger, "one"), found(ledger, "one", "two")] == [1, 1]
    monkeypatch.setattr(costs, "cost_version", lambda: "another")
    assert found(ledger, "one") == 1


def test_the_cost_version_is_that_of_every_line_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(costs.quietbit, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "privacy").mkdir()
    file = tmp_path / "privacy" / "aggregate.py"
    versions = set()
    for text in ("a = 1", "a = 1\n# a fix"):
        file.write_text(text)
        versions.add(cost_version.__wrapped__())
    assert len(versions) == 2


def test_a_ledger_that_cannot_be_written_costs_time_only(ledger, monkeypatch):
    opened = costs.opened

    def unwritable(path, name, *, write=False):
        if write:
            raise LedgerError("read-only")
        return opened(path, name)

    monkeypatch.setattr(costs, "opened", unwritable)
    assert [found(ledger, "one"), found(ledger, "one")] == [1, 1]


def test_the_table_is_bounded(ledger, monkeypatch):
    monkeypatch.setattr(costs, "MOST_COSTS", 10)
    for number in range(30):
        found(ledger, f"bound {number}")
        assert len(SavedCosts(ledger.path).values) <= 10
    found(ledger, *(f"more {number}" for number in range(30)))
    assert len(SavedCosts(ledger.path).values) == 10
