"""Refusals in the log and in the ledger's database: bounded, for the owner only, without data."""

import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from federation.node.makers import DIMENSION, books, declines, keeper, request
from quietbit.errors import InvalidParameter
from quietbit.node import ledger
from quietbit.node.ledger import (
    MOST_LETTERS,
    FileLedger,
    LedgerError,
    LoggedRefusal,
    Moment,
)
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import BudgetSpent, NotAllowed
from quietbit.node.stores import ModelFolder


def history(folder):
    return file_ledger(folder).refusals()


def file_ledger(folder):
    return FileLedger(folder / "ledger", folder / "counter")


def test_every_decision_is_a_line_of_the_log_and_a_refusal_one_of_the_file(tmp_path, caplog):
    gate = keeper(tmp_path, epsilon=4.0, releases=2)
    caplog.set_level(logging.INFO, "quietbit")
    for number in (1, 2):
        gate.accept(request(number)).release([np.full(DIMENSION, np.nan)])
    declines(gate, BudgetSpent, request(3))
    declines(gate, NotAllowed, replace(request(3, run=8), mechanism="{}"))
    declines(gate, InvalidParameter, request(3, dimension=41))
    found = history(tmp_path)
    assert found.counts == {"budget-spent": 1, "not-allowed": 1, "invalid-request": 1}
    assert [(one.run, one.round, one.reason) for one in found.last[:2]] == [
        ("7", 3, "budget-spent"),
        ("8", 3, "not-allowed"),
    ]
    assert "2 releases" in found.last[0].text
    lines = [
        record
        for record in caplog.records
        if record.name == "quietbit.node.gate" and "run" in record.message
    ]
    levels = [record.levelname for record in lines if record.message.startswith("quietbit: run")]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING", "WARNING"]
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "counter"}


def test_failures_of_an_app_are_in_no_refusal(tmp_path):
    """An app that trained to a NaN leaves the same rows, but for clocks."""
    found = []
    for name, update in (
        ("good", np.zeros(DIMENSION)),
        ("bad", np.full(DIMENSION, np.nan)),
        ("none", None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        keeper(folder).accept(request()).release(update)
        seen = history(folder)
        found.append((dict(seen.counts), [one._replace(time=0.0) for one in seen.last]))
    assert found == [found[0]] * 3


def test_the_file_is_bounded_whatever_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MOST_REFUSALS", 40)
    keeper(tmp_path)
    found = file_ledger(tmp_path)
    now = Moment.now()
    for number in range(60):
        text = "x" * (MOST_LETTERS + 1)
        found.refuse(LoggedRefusal(0.0, "9" * 20, number, "invalid-request", text), "", now)
    assert len(found.refusals().last) == 40
    assert found.refusals().counts == {"invalid-request": 60}
    assert max(len(one.text) for one in found.refusals().last) == MOST_LETTERS


def test_refusals_that_cannot_be_kept_stop_no_release(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise LedgerError("The disk is full.")

    gate = keeper(tmp_path)
    monkeypatch.setattr(FileLedger, "refuse", full)
    declines(gate, InvalidParameter, request(3, dimension=41))
    assert "the refusal is not kept" in caplog.text
    assert gate.accept(request()).release(None)


def test_runs_that_the_budget_refused_are_forgotten_after_a_day(tmp_path):
    keeper(tmp_path)
    found = file_ledger(tmp_path)
    now = Moment(1e9, "boot", 5.0)
    found.refuse(LoggedRefusal(0.0, "7", 1, "budget-spent", ""), "7 mark", now)
    later = Moment(now.time + 86401, "boot", now.running + 86401)
    assert books(tmp_path).refused_runs == {"7 mark": now}
    found.refuse(LoggedRefusal(0.0, "8", 1, "budget-spent", ""), "8 mark", later)
    assert books(tmp_path).refused_runs == {"8 mark": later}


def test_models_are_for_this_user_alone_and_no_link_is_followed(tmp_path):
    folder = ModelFolder(tmp_path / "models")
    folder["7.state"] = b"weights"
    assert (tmp_path / "models").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "models" / "7.state.qbmodel").stat().st_mode & 0o777 == 0o600
    (tmp_path / "secret").write_bytes(b"another user's")
    (tmp_path / "models" / "8.state.qbmodel").symlink_to(tmp_path / "secret")
    with pytest.raises(KeyError):
        folder["8.state"]
    folder["8.state"] = b"new"  # replaces the link, not what it points to
    assert (tmp_path / "secret").read_bytes() == b"another user's"
    os.mkfifo(tmp_path / "models" / "9.state.qbmodel")
    with pytest.raises(KeyError):
        folder["9.state"]
    (tmp_path / "models").chmod(0o777)
    with pytest.raises(PolicyError, match="Other users may write"):
        folder["7.state"] = b"weights"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    with pytest.raises(PolicyError, match="link"):
        ModelFolder(tmp_path / "link")["7.state"] = b"weights"


def test_a_logger_that_an_engine_disabled_still_tells_the_owner(tmp_path, owner_log):
    """`logging.config.fileConfig`, as database migrations call it, disables all loggers."""
    gate = keeper(tmp_path)
    logging.getLogger("quietbit.node.gate").disabled = True
    declines(gate, NotAllowed, replace(request(1), mechanism="{}"))
    assert "not-allowed" in owner_log.last()
