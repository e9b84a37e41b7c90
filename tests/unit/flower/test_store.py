"""Where ledgers are kept: whole or not at all, one writer at a time, and never quietly begun anew."""

import os
import subprocess
import sys
from functools import partial

import pytest

from quietbit._validate import InvalidParameter, QuietbitError
from quietbit.flower.node_ledger import NodeLedger, UnreadableLedger, read_ledger
from quietbit.flower.store import FileStore, StateStore, store_for
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm

MECHANISM = Gaussian(Ball(Norm.L2, 1.0, 3), 2.0)


def release(number, ledger):
    return ledger.record(MECHANISM, 5, number)


def test_the_state_keeps_a_text():
    state = {}
    store = store_for({}, state, dict)
    assert isinstance(store, StateStore)
    assert store.read() == NodeLedger()
    assert state == {}
    store.update(partial(release, 1))
    assert store_for({}, state, dict).read().releases == 1
    state["quietbit"] = {"ledger": b"x"}
    with pytest.raises(UnreadableLedger):
        store.read()


def test_a_change_that_raises_changes_nothing(tmp_path):
    for config in ({}, {"quietbit.ledger": str(tmp_path / "ledger.json")}):
        store = store_for(config, {}, dict)
        store.update(partial(release, 2))
        with pytest.raises(InvalidParameter):
            store.update(partial(release, 2))
        assert store.read().releases == 1


def test_a_file_outlives_the_context(tmp_path, caplog):
    path = tmp_path / "ledger.json"
    config = {"quietbit.ledger": str(path)}
    for number in (1, 2, 3):
        caplog.clear()
        store_for(config, {}, dict).update(partial(release, number))
        assert ("a new one is begun" in caplog.text) == (number == 1)
    assert read_ledger(path).releases == 3
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ledger.json", "ledger.json.lock"]


def test_a_file_that_is_damaged_gone_or_put_back_is_refused(tmp_path):
    path, state = tmp_path / "ledger.json", {}
    store = store_for({"quietbit.ledger": str(path)}, state, dict)
    store.update(partial(release, 1))
    old = path.read_text()
    store.update(partial(release, 2))
    path.write_text(old)
    with pytest.raises(UnreadableLedger, match=r"behind what this run has noted \(2 releases\)"):
        store.read()
    path.write_text(old[:50])
    with pytest.raises(UnreadableLedger, match="not a ledger"):
        store.update(partial(release, 3))
    path.unlink()
    with pytest.raises(UnreadableLedger, match="is gone"):
        store.update(partial(release, 3))


def test_a_file_that_has_lost_a_step_of_a_sum_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    store = store_for({"quietbit.ledger": str(path)}, {}, dict)
    store.update(partial(release, 1))
    old = path.read_text()
    store.update(lambda ledger: ledger.record_step(5, 1, 4))
    path.write_text(old)
    with pytest.raises(UnreadableLedger, match="behind what this run has noted"):
        store.read()


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    path, link = tmp_path / "there" / "ledger.json", tmp_path / "here" / "link.json"
    link.symlink_to(path)
    for number, place in ((1, path), (2, link), (3, path)):
        store_for({"quietbit.ledger": str(place)}, {}, dict).update(partial(release, number))
    assert link.is_symlink()
    assert read_ledger(path).releases == 3
    assert [entry.name for entry in link.parent.iterdir()] == ["link.json"]  # one lock, beside the file itself


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(UnreadableLedger, match="Cannot lock the ledger"):
        store_for({"quietbit.ledger": str(tmp_path / "none" / "ledger.json")}, {}, dict).read()
    for path in (3, "", "ledger.json", "./ledger.json"):
        with pytest.raises(InvalidParameter, match="the absolute path of a file"):
            store_for({"quietbit.ledger": path}, {}, dict)
    (tmp_path / "folder").mkdir()
    with pytest.raises(QuietbitError):
        store_for({"quietbit.ledger": str(tmp_path / "folder")}, {}, dict).update(partial(release, 1))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path, state = tmp_path / "ledger.json", {}
    store = store_for({"quietbit.ledger": str(path)}, state, dict)
    store.update(partial(release, 1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(QuietbitError, match="No space left on device"):
        store.update(partial(release, 2))
    assert read_ledger(path).releases == 1
    assert store.read().releases == 1


WRITER = """
import sys
from functools import partial
from pathlib import Path
from quietbit.flower.store import FileStore, StateStore
from unit.flower.test_store import release
store = FileStore(Path(sys.argv[1]), StateStore({}, dict))
for _ in range(40):
    store.update(lambda ledger: release(ledger.releases + 1, ledger))
"""


def test_two_processes_lose_no_release(tmp_path):
    path = tmp_path / "ledger.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", WRITER, str(path)]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    writers = [subprocess.Popen(command, env=environment, cwd=root) for _ in range(2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert FileStore(path, StateStore({}, dict)).read().releases == 80
