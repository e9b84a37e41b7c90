"""Ledgers, counters and policies that other users could change, or that never end: every command
and every release refuses them, at once.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli.kit import shell
from federation.node.makers import DIMENSION, MECHANISM, books, write_policy
from quietbit.node.ledger import FileLedger, LedgerError
from quietbit.node.policy import Policy, PolicyError
from quietbit.node.sender import PrivateSender
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
STRANGER = 12345


def fifo(place):
    place.unlink()
    os.mkfifo(place, 0o600)


def endless(place):
    place.unlink()
    place.symlink_to("/dev/zero")


def device(place):
    place.unlink()
    place.symlink_to("/dev/full")


def folder(place):
    place.unlink()
    place.mkdir(mode=0o700)


def hard_link(place):
    os.link(place, place.with_name("second name"))


def soft_link(place):
    place.rename(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


def writable(place):
    place.chmod(0o666)


def of_a_group(place):
    place.chmod(0o620)


def of_a_stranger(place):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(place, STRANGER, STRANGER)


def in_an_open_folder(place):
    place.parent.chmod(0o777)


def in_a_sticky_folder(place):
    """Others can put no file in the ledger's place there, but a journal beside it."""
    place.parent.chmod(0o1777)


CHANGES = [
    fifo,
    endless,
    device,
    folder,
    hard_link,
    soft_link,
    writable,
    of_a_group,
    of_a_stranger,
    in_an_open_folder,
    in_a_sticky_folder,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["ledger", "counter"])
def test_every_command_and_every_release_refuses_it_at_once(capsys, tmp_path, name, change):
    homes = {"ledger": tmp_path / "one", "counter": tmp_path / "two"}
    for home in homes.values():
        home.mkdir(mode=0o700)
    path = write_policy(tmp_path, **{key: str(home / key) for key, home in homes.items()})
    sender = PrivateSender(Uplink(MECHANISM), path)
    sender.send(np.zeros(DIMENSION))
    change(homes[name] / name)
    begun = time.monotonic()
    for call in (
        lambda: sender.send(np.zeros(DIMENSION)),
        lambda: PrivateSender(Uplink(MECHANISM), path),
    ):
        with pytest.raises(LedgerError) as refusal:
            call()
        assert name in str(refusal.value)
        assert "\n" not in str(refusal.value)
    for words in (
        ("check", path),
        ("status", path),
        ("serve", path, "--socket", tmp_path / "gate"),
        ("import", path, homes["ledger"] / "ledger", homes["counter"] / "counter"),
    ):
        assert shell(capsys, "node", *words).code in (1, 2)
    assert time.monotonic() - begun < 5.0


def test_a_ledger_is_not_made_in_a_folder_that_others_may_write(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for ledger, counter in ((shared, tmp_path), (tmp_path, shared)):
        with pytest.raises(LedgerError, match="Other users may write the folder"):
            FileLedger.create(ledger / "ledger", counter / "counter")
        assert not list(shared.iterdir())
        assert not (tmp_path / "ledger").exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs another user")
def test_a_policy_of_another_user_is_refused(tmp_path):
    path = write_policy(tmp_path)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(PolicyError, match=f"belongs to user {STRANGER}"):
        Policy.load(path)


def test_a_journal_that_somebody_left_is_not_played_back(tmp_path):
    """Restoring a journal of the past beside the ledger of today, as a copied folder would."""
    path = write_policy(tmp_path, epsilon=1e6)
    sender = PrivateSender(Uplink(MECHANISM), path)
    sender.send(np.zeros(DIMENSION))
    copy = tmp_path / "copy"
    code = """
import os, sys, sqlite3
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma cache_size = 1")
database.execute("pragma cache_spill = 1")
database.execute("begin immediate")
database.execute("update lines set line = line || ' '")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "ledger")], check=True)
    journal = tmp_path / "ledger-journal"
    if journal.exists():
        shutil.copy(journal, copy)
    sender.send(np.zeros(DIMENSION))
    if copy.exists():
        shutil.copy(copy, journal)
    try:
        found = books(tmp_path).releases
    except LedgerError:
        return
    assert found == 2


POLICIES = {
    "deep list": "x = " + "[" * 5_000 + "]" * 5_000,
    "dotted key": ".".join("a" * 5_000) + " = 1",
    "deep table": "[" + ".".join("a" * 5_000) + "]",
    "inline tables": "x = " + "{a=" * 2_500 + "1" + "}" * 2_500,
    "many digits": "x = " + "9" * 10_000,
    "hexadecimal": "largest-dimension = 0x" + "f" * 10_000,
    "long key": "a" * 10_000 + " = 1",
    "long word": 'data-set = "' + "a" * 10_000 + '"',
    "open quote": 'x = "' + "\\\\" * 5_000,
    "quotes": "x = " + "'" * 10_001,
    "escaped quotes": "x = " + '"\\' * 5_000,
    "quotes after escapes": "x = " + '\\"' * 5_000,
    "tables after a long word": "x = ['''\n''', " + "{a=" * 2_500 + "1" + "}" * 2_500 + "]",
    "many keys": "".join(f"a{number} = 1\n" for number in range(1000)),
    "too long": "#" * 15_000,
}


@pytest.mark.parametrize("text", POLICIES.values(), ids=POLICIES.keys())
def test_a_policy_that_no_owner_writes_is_one_sentence_within_a_second(tmp_path, text):
    path = Path(write_policy(tmp_path))
    lines = [line for line in path.read_text().splitlines() if not line.startswith("data-set")]
    path.write_text("\n".join([*lines, text, ""]))
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(PolicyError) as refusal:
        Policy.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun < 1.0
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_an_endless_list_of_members_is_refused_at_once(capsys, tmp_path):
    shell(capsys, "node", "keys", tmp_path / "operator.pem")
    refused = shell(
        capsys,
        *("node", "directory", tmp_path / "members.json"),
        *("--operator", tmp_path / "operator.pem", "--members", "/dev/zero"),
    )
    assert refused.code == 2
    assert "regular file" in refused.err
