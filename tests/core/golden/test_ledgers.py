"""Ledgers of the past: every file that an earlier quietbit wrote is imported, priced and continued.

The files are never written again. The lines of a ledger of quietbit 0.1 (version 2) stay byte for
byte in the database, and so do their digests.
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from federation.node.makers import policy
from quietbit.node.budget import account_of, epsilon_spent
from quietbit.node.ledger import FileLedger, LedgerError, release_line
from quietbit.node.old_ledger import import_ledger
from quietbit.target import Target

FILES = ("ledger", "counter", "ledger.old", "counter.old")
HERE = Path(__file__).parent / "ledgers"
SAMPLE = {"unit": "sample", "data_set": "ward 3", "mechanisms": ("gaussian",)}
SUMS = {"trust": ["local", "secure-aggregation"], "min_honest_clients": 50, "local_epsilon": 30.0}
# Lines, releases, the last round of run 7 or 9, and epsilon under the policy's first cap.
TOTALS = {
    "v2_prices": (6, 3, 3, {}, 4.017532714300167),
    "v2_evaluations": (7, 4, 2, {"evaluate": 1.0}, 4.7159578457960745),
    "v2_sums": (6, 1, 1, SUMS, 0.2903385924550375),
    "v2_samples": (5, 3, 2, SAMPLE, 0.01493869787087338),
}


@pytest.fixture(params=sorted(path.stem for path in HERE.glob("*.ledger")))
def golden(request, tmp_path):
    """A copy of each file, moved away as `quietbit node import` asks."""
    for suffix in ("ledger", "counter"):
        shutil.copy(HERE / f"{request.param}.{suffix}", tmp_path / f"{suffix}.old")
        (tmp_path / f"{suffix}.old").chmod(0o600)
    return request.param, tmp_path


def imported(folder):
    return import_ledger(*(folder / name for name in FILES))


def test_every_golden_ledger_is_read_priced_and_continued(golden):
    name, folder = golden
    lines, releases, last, changes, epsilon = TOTALS[name]
    ledger = imported(folder)
    state = ledger.read()
    assert (state.count, state.releases) == (lines, releases)
    assert max(state.last_round("7"), state.last_round("9")) == last
    rules = policy(folder, **changes)
    honest = rules.min_honest_clients or 0
    spent = epsilon_spent(state, rules.caps[0], rules, honest)
    assert spent == pytest.approx(
        epsilon, rel=1e-12
    )  # the last digits are those of scipy's version
    old = (folder / "ledger.old").read_text().splitlines()
    assert [head.hex() for head in state.heads] == [
        hashlib.sha256(line.encode()).hexdigest() for line in old
    ]
    mark = json.loads((folder / "counter.old").read_text())
    assert state.mark == {"count": mark["count"], "head": mark["head"]}
    mechanism = next(iter(state.mechanisms))
    ledger.update(lambda _: [release_line(mechanism, honest, "7", 9)])
    assert FileLedger(folder / "ledger", folder / "counter").read().releases == releases + 1


def test_a_copy_that_is_put_back_is_noticed_while_its_counter_is_newer(golden):
    """What a restored old copy means: releases that it does not know of were made."""
    _, folder = golden
    ledger = imported(folder)
    old = (folder / "ledger").read_bytes()
    mechanism = next(iter(ledger.read().mechanisms))
    ledger.update(lambda _: [release_line(mechanism, 0, "7", 9)])
    (folder / "ledger").write_bytes(old)
    with pytest.raises(LedgerError, match="older than its counter"):
        FileLedger(folder / "ledger", folder / "counter").read()


@pytest.mark.parametrize("version", [1, 3, 99])
def test_a_ledger_of_another_version_is_refused_with_what_to_do(golden, version):
    _, folder = golden
    text = (folder / "ledger.old").read_text()
    (folder / "ledger.old").write_text(text.replace('"version":2', f'"version":{version}', 1))
    with pytest.raises(
        LedgerError,
        match=f"version {version}, and this quietbit reads version 2.*Install the quietbit",
    ):
        imported(folder)
    assert not (folder / "ledger").exists()


@pytest.mark.parametrize("change", ["cut", "changed", "counter", "links", "shared", "twice"])
def test_what_quietbit_0_1_would_have_refused_is_not_imported(golden, change):
    _, folder = golden
    old, counter = folder / "ledger.old", folder / "counter.old"
    if change == "cut":
        old.write_text("".join(old.read_text().splitlines(keepends=True)[:-1]))
    elif change == "changed":
        old.write_text(old.read_text().replace('"round":1', '"round":8', 1))
    elif change == "counter":
        counter.write_text(counter.read_text().replace('"count":', '"count":1', 1))
    elif change == "links":
        (folder / "second").hardlink_to(old)
    elif change == "shared":
        counter.chmod(0o666)
    else:
        imported(folder)
    with pytest.raises(LedgerError):
        imported(folder)
    assert (folder / "ledger").exists() is (change == "twice")


def test_an_incomplete_last_line_was_never_acted_upon(golden):
    name, folder = golden
    with (folder / "ledger.old").open("a") as file:
        file.write('{"kind":"release","mech')
    assert imported(folder).read().count == TOTALS[name][0]


def test_an_old_ledger_in_its_place_is_refused_with_what_to_do(golden):
    _, folder = golden
    for name in ("ledger", "counter"):
        shutil.copy(folder / f"{name}.old", folder / name)
    with pytest.raises(LedgerError, match="quietbit node import"):
        FileLedger(folder / "ledger", folder / "counter").read()


def test_every_golden_ledger_has_its_totals():
    assert set(TOTALS) == {path.stem for path in HERE.glob("*.ledger")}


def test_accounts_of_a_run_are_those_of_its_own_lines(tmp_path):
    for suffix in ("ledger", "counter"):
        shutil.copy(HERE / f"v2_evaluations.{suffix}", tmp_path / f"{suffix}.old")
        (tmp_path / f"{suffix}.old").chmod(0o600)
    state = imported(tmp_path).read()
    cap = Target(8.0, 1e-5, "replace-one")
    seven = account_of(state, cap, run="7")
    eight = account_of(state, cap, run="8")
    assert [times for _, times in seven.entries] == [2]
    assert [times for _, times in eight.entries] == [1]
    assert [times for _, times in account_of(state, cap).entries] == [3]
