"""A ledger on disk: chained lines, a separate counter, and what can happen to two files."""

import os
import shutil
import time

import pytest

from federation.node.makers import MECHANISM
from quietbit.node.budget import account_of
from quietbit.node.ledger import (
    MOST_MECHANISMS,
    MOST_OF_DAY,
    MOST_OF_RUN,
    FileLedger,
    LedgerError,
    Moment,
    StateLedger,
    mechanism_line,
    opened,
    release_line,
)
from quietbit.node.refusal import AnsweredBefore, BudgetSpent
from quietbit.node.request import ProposedMechanism, description_of
from quietbit.privacy.account import Account
from quietbit.target import Adjacency, Target
from refusals import refuses

OFFER = ProposedMechanism.read(description_of(MECHANISM))
ADJACENCY = Adjacency.REPLACE_ONE
OLD_PRICE = {
    "kind": "price",
    "mechanism": OFFER.identity,
    "adjacency": "replace-one",
    "honest": 0,
    "orders": 2,
    "rdp": [0.0, None],
    "pure": None,
    "lost": 0.0,
}  # as earlier versions wrote them
PRICED = [mechanism_line(OFFER.identity, OFFER.description), OLD_PRICE]


def release(books):
    known = [] if OFFER.identity in books.mechanisms else PRICED
    return [*known, release_line(OFFER.identity, 0, "7", books.last_round("7") + 1)]


@pytest.fixture
def ledger(tmp_path):
    found = FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    for _ in range(3):
        found.update(release)
    return found


def again(folder):
    return FileLedger(folder / "ledger", folder / "counter")


def test_lines_add_up_and_are_read_by_another_process(ledger, tmp_path):
    for books in (ledger.read(), again(tmp_path).read()):
        assert books.releases == 3
        assert books.last_round("7") == 3
        assert books.count == 1 + 2 + 3
        cap = Target(8.0, 1e-5, ADJACENCY)
        assert account_of(books, cap) == Account(cap, "adaptive").spend(OFFER.cost(ADJACENCY, 0), 3)
        assert books.last_day(Moment.now()) == 3
    assert len(lines(tmp_path)) == 6
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600


def test_a_round_and_a_step_are_answered_once_and_in_order(ledger):
    books = ledger.read()
    for number in (3, 2):
        with pytest.raises(AnsweredBefore) as refusal:
            books.check_round("7", number)
        assert "round 3" in refusal.value.for_owner
        assert "3" not in str(refusal.value)
    books.check_round("8", 1)
    books = ledger.update(lambda books: [books.step("7", 4, 2), books.step("7", 4, 4)])
    for number, step in ((4, 4), (4, 2), (3, 4)):
        with pytest.raises(AnsweredBefore) as refusal:
            books.step("7", number, step)
        assert "after step 4 of round 4" in refusal.value.for_owner
    books.step("7", 5, 2)


def test_steps_without_a_release_come_to_an_end(ledger):
    for number in range(1, 10_000):
        try:
            ledger.update(lambda books, n=number: [books.step("7", n, 2)] * 40)
        except BudgetSpent as error:
            assert "steps" in error.for_owner  # noqa: PT017
            break
    assert ledger.read().step_lines < 400


def test_a_ledger_is_made_once_and_never_by_use(tmp_path):
    with pytest.raises(LedgerError, match="is missing"):
        again(tmp_path).read()
    with pytest.raises(LedgerError, match="is missing"):
        again(tmp_path).update(release)
    assert list(tmp_path.iterdir()) == []
    FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    with pytest.raises(LedgerError, match="exists"):
        FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    (tmp_path / "ledger").unlink()
    with pytest.raises(LedgerError, match="exists"):  # the counter is
        FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    with refuses("ledger", "ledger"):
        FileLedger("ledger", tmp_path / "counter")
    with refuses("counter"):
        FileLedger(tmp_path / "ledger", tmp_path / "ledger")


def test_an_old_copy_is_refused_and_what_to_do_is_said(ledger, tmp_path):
    shutil.copy(tmp_path / "ledger", tmp_path / "old")
    ledger.update(release)
    shutil.copy(tmp_path / "ledger", tmp_path / "new")
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    with pytest.raises(LedgerError, match="older than its counter"):
        again(tmp_path).update(release)
    with pytest.raises(LedgerError, match="shorter than it was"):
        ledger.update(release)
    shutil.copy(tmp_path / "new", tmp_path / "ledger")
    assert again(tmp_path).read().releases == 4


def test_an_old_ledger_with_its_old_counter_is_noticed_by_who_remembers(ledger, tmp_path):
    for name in ("ledger", "counter"):
        shutil.copy(tmp_path / name, tmp_path / f"{name}.old")
    known = ledger.update(release).mark
    for name in ("ledger", "counter"):
        os.replace(tmp_path / f"{name}.old", tmp_path / name)
    with pytest.raises(LedgerError, match="shorter than it was"):  # a gatekeeper
        ledger.read()
    assert again(tmp_path).read().is_behind(known)  # Flower's state within a run
    assert not again(tmp_path).read().is_behind({})
    assert again(tmp_path).read().releases == 3  # alone, it cannot know


@pytest.mark.parametrize("name", ["ledger", "counter"])
def test_a_file_that_is_gone_is_not_begun_anew(ledger, tmp_path, name):
    (tmp_path / name).unlink()
    for found in (ledger, again(tmp_path)):
        with pytest.raises(LedgerError, match=f"The {name} .* is missing"):
            found.update(release)
    assert not (tmp_path / name).exists()


def lines(folder):
    with opened(folder / "ledger", "ledger") as database:
        return [line for (line,) in database.execute("select line from lines order by number")]


def rewrite(change):
    """Put other lines into the ledger, as an editor of databases would."""

    def changed(folder):
        new = change(lines(folder))
        with opened(folder / "ledger", "ledger", write=True) as database:
            database.execute("delete from lines")
            database.executemany("insert into lines values (?, ?)", enumerate(new, 1))

    return changed


def execute(statement):
    def changed(folder):
        with opened(folder / "ledger", "ledger", write=True) as database:
            database.execute(statement)

    return changed


def noise(folder):
    """One bit of the file."""
    data = bytearray((folder / "ledger").read_bytes())
    data[data.index(lines(folder)[4].encode()) + 40] ^= 1
    (folder / "ledger").write_bytes(data)


def exchange(folder):
    """The ledger of another node, as long as this one."""
    other = FileLedger.create(folder / "ledger2", folder / "counter2")
    for _ in range(3):
        other.update(release)
    os.replace(folder / "ledger2", folder / "ledger")


CHANGES = {
    "a space": rewrite(lambda old: [old[0], old[1] + " ", *old[2:]]),
    "a space at the end": rewrite(lambda old: [*old[:-1], old[-1] + " "]),
    "another release": rewrite(lambda old: [*old[:3], old[3].replace("1", "2"), *old[4:]]),
    "taken out": rewrite(lambda old: [*old[:4], *old[5:]]),
    "moved": rewrite(lambda old: [*old[:3], old[4], old[3], *old[5:]]),
    "cut": rewrite(lambda old: old[:-1]),
    "emptied": rewrite(lambda old: []),
    "twice": rewrite(lambda old: [*old, old[-1]]),
    "not ours": rewrite(lambda old: ["hello", *old[1:]]),
    "no list": rewrite(lambda old: ["[]", *old[1:]]),
    "NaN": rewrite(lambda old: [*old[:2], old[2].replace('"rdp":[', '"rdp":[NaN,'), *old[3:]]),
    "other kind": rewrite(lambda old: [*old[:-1], old[-1].replace('"release"', '"gift"')]),
    "a number": execute("update lines set line = 7 where number = 3"),
    "schema": execute("alter table lines rename to others"),
    "version": execute("pragma user_version = 4"),
    "noise": noise,
    "another ledger": exchange,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_ledger_is_refused_by_a_running_process_and_a_new_one(ledger, tmp_path, change):
    change(tmp_path)
    for found in (ledger, again(tmp_path)):
        with pytest.raises(LedgerError):
            found.read()
        with pytest.raises(LedgerError):
            found.update(release)


def test_a_ledger_ahead_of_its_counter_has_spent_more(ledger, tmp_path):
    """The crash between the two writes."""
    shutil.copy(tmp_path / "counter", tmp_path / "before")
    ledger.update(release)
    os.replace(tmp_path / "before", tmp_path / "counter")
    assert again(tmp_path).read().releases == 4
    assert again(tmp_path).update(release).releases == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter", "ledger"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":"quietbit-counter"}', "\xff"])
def test_a_counter_that_is_none_is_refused(ledger, tmp_path, text):
    (tmp_path / "counter").write_bytes(text.encode("latin-1"))
    with pytest.raises(LedgerError, match="counter"):
        again(tmp_path).read()


def test_a_counter_of_another_ledger_is_refused(ledger, tmp_path):
    with opened(tmp_path / "counter", "counter", write=True) as database:
        database.execute("update counter set ledger = ?", ("00" * 16,))
    with pytest.raises(LedgerError, match="different ledger"):
        again(tmp_path).read()
    FileLedger.create(tmp_path / "l2", tmp_path / "c2")
    with pytest.raises(LedgerError, match="different ledger"):
        FileLedger(tmp_path / "ledger", tmp_path / "c2").read()


def test_a_ledger_takes_so_many_mechanisms(tmp_path):
    """Every process that reads the ledger computes each cost: a server must not slow that down."""
    found = FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    found.update(
        lambda _: [mechanism_line(f"{number:064x}", {}) for number in range(MOST_MECHANISMS)]
    )
    books = again(tmp_path).read()
    books.check_mechanism(f"{7:064x}", "7", Moment.now())
    with pytest.raises(BudgetSpent) as refusal:
        books.check_mechanism(OFFER.identity, "7", Moment.now())
    assert str(MOST_MECHANISMS) in refusal.value.for_owner


def test_a_run_and_a_day_add_so_many_mechanisms(tmp_path, monkeypatch):
    clock = time.time()
    monkeypatch.setattr(time, "time", lambda: clock)
    monkeypatch.setattr(time, "clock_gettime", lambda _: clock)
    found = FileLedger.create(tmp_path / "ledger", tmp_path / "counter")
    number = 0

    def add(run):
        nonlocal number
        number += 1
        name = f"{number:064x}"
        found.read().check_mechanism(name, run, Moment.now())
        found.update(lambda _: [mechanism_line(name, {}), release_line(name, 0, run, number)])

    for run in ("7", "7/evaluations"):
        for _ in range(MOST_OF_RUN // 2):
            add(run)
    for run in ("7", "7/evaluations"):
        with pytest.raises(BudgetSpent) as refusal:
            add(run)
        assert "run 7" in refusal.value.for_owner
    for place in range(MOST_OF_DAY - MOST_OF_RUN):
        add(f"1{place}")
    with pytest.raises(BudgetSpent) as refusal:
        add("8")
    assert "in the last 24 hours" in refusal.value.for_owner
    clock += 86401
    add("8")


def test_a_ledger_in_a_mapping_has_the_same_lines():
    state = {}
    found = StateLedger(state)
    for _ in range(2):
        found.update(release)
    assert StateLedger(state).read().releases == 2
    state["ledger"] = state["ledger"].replace('"round":1', '"round":9')
    with pytest.raises(LedgerError, match="was changed"):
        StateLedger(state).read()
