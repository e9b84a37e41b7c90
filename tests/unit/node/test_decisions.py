"""Decisions in the log and beside the ledger: bounded, for the owner only, without data."""

import errno
import json
import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.node import decisions as module
from quietbit.node.decisions import ACCEPTED, MOST_DECISIONS, Decision, Decisions, decisions_beside
from quietbit.node.ledger import FileLedger, LedgerError, Moment
from quietbit.node.metrics import metrics_text
from quietbit.node.policy import PolicyError, init
from quietbit.node.refusal import BudgetSpent, NotAllowed
from quietbit.node.stores import ModelFolder
from unit.node.makers import DIMENSION, books, keeper, policy, request


def history(folder):
    return decisions_beside(folder / "ledger").read()


def test_every_decision_is_one_line_of_the_log_and_one_of_the_file(tmp_path, caplog):
    gate = keeper(tmp_path, epsilon=4.0, releases=2)
    caplog.set_level(logging.INFO, "quietbit")
    for number in (1, 2):
        gate.accept(request(number)).release([np.full(DIMENSION, np.nan)])
    with pytest.raises(BudgetSpent):
        gate.accept(request(3))
    with pytest.raises(NotAllowed):
        gate.accept(replace(request(3, run=8), mechanism="{}"))
    with pytest.raises(InvalidParameter):
        gate.accept(request(3, dimension=41))
    found = history(tmp_path)
    assert found.counts == {ACCEPTED: 2, "budget-spent": 1, "not-allowed": 1, "invalid-request": 1}
    assert [(one.run, one.round, one.reason) for one in found.last[1:3]] == [
        ("7", 2, ACCEPTED),
        ("7", 3, "budget-spent"),
    ]
    assert "2 releases" in found.last[2].text
    lines = [
        record
        for record in caplog.records
        if record.name == "quietbit.node.release" and "run" in record.message
    ]
    levels = [record.levelname for record in lines if record.message.startswith("quietbit: run")]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING", "WARNING"]
    assert (tmp_path / "ledger.decisions").stat().st_mode & 0o777 == 0o600


def test_failures_of_an_app_are_in_no_decision(tmp_path):
    """An app that trained to a NaN leaves the same file, byte for byte but for clocks."""
    files = []
    for name, update in (
        ("good", np.zeros(DIMENSION)),
        ("bad", np.full(DIMENSION, np.nan)),
        ("none", None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        keeper(folder).accept(request()).release(update)
        content = history(folder).content
        content["seconds"] = 0
        content["last"][0][0] = 0
        files.append(json.dumps(content))
    assert len(set(files)) == 1


def test_the_file_is_bounded_whatever_is_asked(tmp_path):
    found = Decisions(tmp_path / "ledger.decisions")
    now = Moment.now()
    for number in range(MOST_DECISIONS + 20):
        found.add(
            Decision(now.time, "9" * 20, number, "invalid-request", "x" * module.MOST_LETTERS),
            0.5,
            "",
            now,
        )
    assert len(found.read().last) == MOST_DECISIONS
    assert found.read().counts == {"invalid-request": MOST_DECISIONS + 20}
    assert (tmp_path / "ledger.decisions").stat().st_size < module.MOST_BYTES


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format":"other","version":1}', b"\0" * 50])
def test_a_torn_file_begins_again(tmp_path, content, caplog):
    (tmp_path / "ledger.decisions").write_bytes(content)
    (tmp_path / "ledger.decisions").chmod(0o600)
    gate = keeper(tmp_path)
    gate.accept(request())
    assert history(tmp_path).counts == {ACCEPTED: 1}
    assert "started again" in caplog.text


def test_a_file_that_cannot_be_read_or_locked_is_an_error_and_nothing_is_released(
    tmp_path, monkeypatch
):
    gate = keeper(tmp_path)
    (tmp_path / "ledger.decisions").mkdir()
    with pytest.raises(LedgerError):
        gate.accept(request())
    assert books(tmp_path).releases == 0


def test_metrics_are_prometheus_text_and_do_not_depend_on_data(tmp_path):
    gate = keeper(tmp_path)
    for number in (1, 2):
        gate.accept(request(number)).release(None)
    with pytest.raises(BudgetSpent):
        gate.accept(request(3, epsilon=0.01))
    text = metrics_text(policy(tmp_path), books(tmp_path), history(tmp_path))
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert line.split()[1] in ("HELP", "TYPE")
            continue
        name, _, value = line.rpartition(" ")
        assert name not in values
        values[name] = float(value)
    assert values["quietbit_releases_total"] == 2
    assert values['quietbit_decisions_total{reason="accepted"}'] == 2
    assert values['quietbit_decisions_total{reason="budget-spent"}'] == 1
    (spent,) = [
        value for name, value in values.items() if name.startswith("quietbit_epsilon_spent")
    ]
    assert 0 < spent < 8


WRITES = ("open", "pwrite", "write", "fsync", "ftruncate", "replace")


def failing(monkeypatch, which):
    """Let the call of this number, of those that a full disk can refuse, fail."""
    count = 0

    def wrap(real):
        def call(*args, **words):
            nonlocal count
            makes = real is not opened or args[1] & (os.O_CREAT | os.O_RDWR | os.O_WRONLY)
            if makes:
                count += 1
                if count == which:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **words)

        return call

    opened = os.open
    for name in WRITES:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


def test_init_on_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    """Whichever call it is that fails: what is left would be in the way of the next attempt."""
    rules = {
        "epsilon": 8.0,
        "adjacency": "zero-out",
        "largest_clip": 1.0,
        "releases": 9,
        "releases_per_day": 9,
    }
    failures = 0
    for which in range(1, 40):
        folder = tmp_path / str(which)
        folder.mkdir()
        with monkeypatch.context() as patch:
            failing(patch, which)
            try:
                init(folder / "policy.toml", **rules)
            except QuietbitError:
                failures += 1
            else:
                break
        assert list(folder.iterdir()) == []
        init(folder / "policy.toml", **rules)
    assert failures >= 8


def test_a_full_disk_in_any_call_releases_nothing_and_counts_nothing_twice(tmp_path, monkeypatch):
    gate = keeper(tmp_path, epsilon=1e6)
    gate.accept(request(1))
    number = 2
    failures = 0
    for which in range(1, 30):
        with monkeypatch.context() as patch:
            failing(patch, which)
            try:
                gate.accept(request(number))
            except QuietbitError:
                failures += 1
        noted = FileLedger(tmp_path / "ledger", tmp_path / "counter").read().last_round("7")
        assert noted in (number - 1, number)
        number = noted + 1
    assert failures >= 5
    gate.accept(request(number))
    assert books(tmp_path).last_round("7") == number


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
    with pytest.raises(PolicyError, match="owner"):
        folder["7.state"] = b"weights"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    with pytest.raises(PolicyError, match="link"):
        ModelFolder(tmp_path / "link")["7.state"] = b"weights"


def test_a_logger_that_an_engine_disabled_still_tells_the_owner(tmp_path, owner_log):
    """`logging.config.fileConfig`, as database migrations call it, disables all loggers."""
    gate = keeper(tmp_path)
    logging.getLogger("quietbit.node.release").disabled = True
    with pytest.raises(NotAllowed):
        gate.accept(replace(request(1), mechanism="{}"))
    assert "not-allowed" in owner_log.last()
