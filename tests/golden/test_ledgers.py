"""Ledgers of the past: every file that a released or earlier quietbit wrote is read, priced and
continued.

The files are never written again. A ledger of version 2 is read as it is: that is its migration,
and lines that were written once stay byte for byte.
"""

import shutil
from pathlib import Path

import pytest

from quietbit.node.budget import account_of, epsilon_spent
from quietbit.node.ledger import FileLedger, LedgerError, release_line
from quietbit.target import Target
from unit.node.makers import policy

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
    """A copy of each file, as a backup that is put back would be."""
    for suffix in ("ledger", "counter"):
        shutil.copy(HERE / f"{request.param}.{suffix}", tmp_path / suffix)
    return request.param, tmp_path


def test_every_golden_ledger_is_read_priced_and_continued(golden):
    name, folder = golden
    lines, releases, last, changes, epsilon = TOTALS[name]
    state = FileLedger(folder / "ledger", folder / "counter").read()
    assert (state.count, state.releases) == (lines, releases)
    assert max(state.last_round("7"), state.last_round("9")) == last
    rules = policy(folder, **changes)
    honest = rules.min_honest_clients or 0
    assert epsilon_spent(state, rules.caps[0], rules, honest) == epsilon
    before = (folder / "ledger").read_bytes()
    mechanism = next(iter(state.mechanisms))
    ledger = FileLedger(folder / "ledger", folder / "counter")
    ledger.update(lambda _: [release_line(mechanism, honest, "7", 9)])
    after = (folder / "ledger").read_bytes()
    assert after.startswith(before)
    assert FileLedger(folder / "ledger", folder / "counter").read().releases == releases + 1


def test_a_copy_that_is_put_back_is_noticed_while_its_counter_is_newer(golden):
    """What a restored old copy means: releases that it does not know of were made."""
    _, folder = golden
    old = (folder / "ledger").read_bytes()
    ledger = FileLedger(folder / "ledger", folder / "counter")
    mechanism = next(iter(ledger.read().mechanisms))
    ledger.update(lambda _: [release_line(mechanism, 0, "7", 9)])
    (folder / "ledger").write_bytes(old)
    with pytest.raises(LedgerError, match="older than its counter"):
        FileLedger(folder / "ledger", folder / "counter").read()


@pytest.mark.parametrize("version", [1, 3, 99])
def test_a_ledger_of_another_version_is_refused_with_what_to_do(golden, version):
    _, folder = golden
    text = (folder / "ledger").read_text()
    (folder / "ledger").write_text(text.replace('"version":2', f'"version":{version}', 1))
    with pytest.raises(
        LedgerError,
        match=f"version {version}, and this quietbit reads version 2.*Install the quietbit",
    ):
        FileLedger(folder / "ledger", folder / "counter").read()


def test_every_golden_ledger_has_its_totals():
    assert set(TOTALS) == {path.stem for path in HERE.glob("*.ledger")}


def test_accounts_of_a_run_are_those_of_its_own_lines():
    for suffix in ("ledger", "counter"):
        assert (HERE / f"v2_evaluations.{suffix}").exists()
    state = FileLedger(HERE / "v2_evaluations.ledger", HERE / "v2_evaluations.counter").read()
    cap = Target(8.0, 1e-5, "replace-one")
    seven = account_of(state, cap, run="7")
    eight = account_of(state, cap, run="8")
    assert [times for _, times in seven.entries] == [2]
    assert [times for _, times in eight.entries] == [1]
    assert [times for _, times in account_of(state, cap).entries] == [3]
