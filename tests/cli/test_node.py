"""``quietbit node``: written once, checked, shown, served; and refusals in one sentence."""

import contextlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from cli.kit import assert_refused, shell
from federation.node.makers import DIMENSION, MECHANISM, NOISY, declines, gate_of, request
from quietbit.node.gatekeeper import RemoteGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.refusal import NotAllowed
from quietbit.node.sender import PrivateSender
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink


def init(capsys, folder, *more):
    words = "--epsilon 8 --adjacency replace-one --largest-clip 1 --releases 50"
    words += " --releases-per-day 9"
    return shell(capsys, "node init", folder / "policy.toml", *words.split(), *more)


def send(path, **given):
    """Make a release."""
    return PrivateSender(Uplink(MECHANISM), path, **given).send(np.zeros(DIMENSION))


def test_init_writes_a_policy_and_begins_a_ledger_once(capsys, tmp_path):
    done = init(capsys, tmp_path, "--json")
    assert done.code == 0
    assert done.json["ledger"] == str(tmp_path / "ledger")
    found = Policy.load(done.json["policy"])
    assert (found.epsilon, found.releases, found.releases_per_day, found.mechanisms) == (
        8.0,
        50,
        9,
        ("imvu", "vmvu", "scout"),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter", "ledger", "policy.toml"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert_refused(init(capsys, tmp_path), "POLICY")
    (tmp_path / "policy.toml").unlink()
    assert_refused(init(capsys, tmp_path), "exists")


def test_init_with_sums_and_metrics(capsys, tmp_path):
    words = "--min-honest-clients 5 --local-epsilon 30 --runs 7,8 --metrics"
    done = init(capsys, tmp_path, *words.split(), "loss, accuracy")
    assert done.code == 0
    found = Policy.load(tmp_path / "policy.toml")
    assert (found.min_honest_clients, found.local_epsilon) == (5, 30.0)
    assert (found.metrics, found.runs) == (("loss", "accuracy"), ("7", "8"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--epsilon", -1], "--epsilon must be"),
        (["--adjacency", "both"], "--adjacency must be one of"),
        (["--min-honest-clients", 5], "local-epsilon must be given"),
        (["--min-honest-clients", 1, "--local-epsilon", 3], "min-honest-clients must be"),
        (["--mechanisms", ""], "--mechanisms must be"),
        (
            ["--mechanisms", "imvu,vmvuu"],
            "--mechanisms must be a known one (did you mean 'vmvu'?)",
        ),
        (["--counter", "counter"], "--counter"),
        (["--epsilom", 1], "No such option: --epsilom"),
    ],
)
def test_init_refuses_in_one_sentence_and_leaves_nothing(capsys, tmp_path, words, says):
    assert_refused(init(capsys, tmp_path, *words), says)
    assert list(tmp_path.iterdir()) == []


def test_missing_options_are_named_all_at_once(capsys, tmp_path):
    others = ["--adjacency", "zero-out", "--releases=3", "--releases-per-day", 1]
    asked = "Missing options --epsilon and --largest-clip; see quietbit node init --help."
    assert_refused(shell(capsys, "node init", tmp_path / "p", *others), asked)
    asked = "Missing option '--epsilon'; see quietbit node init --help."
    others.append("--largest-clip=1")
    assert_refused(shell(capsys, "node init", tmp_path / "p", *others), asked)


def test_check_says_no_with_exit_code_one(capsys, tmp_path):
    path = tmp_path / "policy.toml"
    init(capsys, tmp_path)
    assert shell(capsys, "node check", path, "--json").json == {
        "fine": True,
        "lines": 1,
        "problem": "",
    }
    send(path)
    shutil.copy(tmp_path / "ledger", tmp_path / "old")
    send(path)
    shutil.copy(tmp_path / "old", tmp_path / "ledger")
    found = shell(capsys, "node check", path, "--json")
    assert found.code == 1
    assert "older than its counter" in found.json["problem"]
    (tmp_path / "ledger").unlink()
    assert "is missing" in shell(capsys, "node check", path, "--json").json["problem"]
    assert shell(capsys, "node check", path).code == 1
    path.chmod(0o666)
    assert shell(capsys, "node check", path).code == 1


def test_status_says_what_was_released_to_whom_and_what_is_left(capsys, tmp_path):
    path = tmp_path / "policy.toml"
    init(capsys, tmp_path)
    for run in (3, 3, 4):
        send(path, run=run)
    found = shell(capsys, "node status", path, "--json").json
    assert (found["releases"], found["releases_left"], found["today"], found["today_left"]) == (
        3,
        47,
        3,
        6,
    )
    assert [(one["run"], one["releases"]) for one in found["runs"]] == [("3", 2), ("4", 1)]
    (cap,) = found["caps"]
    assert 0 < cap["epsilon_upper"] <= cap["epsilon"] == 8.0
    text = shell(capsys, "node status", path).out
    assert "3 of 50" in text
    assert "3 of 9" in text


def test_serve_answers_until_it_is_told_to_stop(tmp_path, capsys):
    init(capsys, tmp_path)
    place = tmp_path / "node.sock"
    words = ["node", "serve", str(tmp_path / "policy.toml"), "--socket", str(place), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "quietbit", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gate:
        try:
            deadline = time.monotonic() + 60
            while not place.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            data = RemoteGate(place).accept(request()).release([np.zeros(DIMENSION)])
            assert Framed.from_bytes(data).round == 1
        finally:
            gate.send_signal(signal.SIGTERM)
            _, err = gate.communicate(timeout=30)
    assert gate.returncode == 0, err
    assert not place.exists()


def test_serve_refuses_before_it_serves(capsys, tmp_path):
    place = tmp_path / "node.sock"
    assert_refused(
        shell(capsys, "node serve", tmp_path / "none", "--socket", place),
        "Cannot read the policy",
    )
    init(capsys, tmp_path)
    (tmp_path / "counter").unlink()
    assert_refused(
        shell(capsys, "node serve", tmp_path / "policy.toml", "--socket", place), "is missing"
    )
    assert not place.exists()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match="No such file"):
        probe.connect(str(place))


def test_keys_and_a_directory_that_a_node_pins(capsys, tmp_path):
    def keys(name):
        return shell(capsys, "node keys", tmp_path / name, "--json").json["public"]

    operator, one, other = (keys(name) for name in ("operator", "a", "b"))
    assert keys("a") == one  # they are shown, not made again
    private = (tmp_path / "a").read_text().splitlines()[1]
    assert private not in shell(capsys, "node keys", tmp_path / "a").out
    nodes = tmp_path / "nodes.txt"
    nodes.write_text(f"# two nodes\n{one} first clinic\n{other} second\n")

    def directory(*words):
        return shell(capsys, "node directory", tmp_path / "members.json", "--operator", *words)

    directory(tmp_path / "operator", "--members", nodes)
    found = directory(operator, "--json").json
    assert [member["name"] for member in found["members"]] == ["first clinic", "second"]
    assert "first clinic" in directory(operator).out
    assert_refused(directory(one), "signed by the operator")
    assert_refused(directory("xyz"), "64 hexadecimal digits")
    words = [
        "--min-honest-clients",
        "5",
        "--local-epsilon",
        "30",
        "--most-colluders",
        "1",
        "--directory",
    ]
    sums = [*words, tmp_path / "members.json", "--operator", operator]
    for name in ("own", "more"):
        (tmp_path / name).mkdir()
    init(capsys, tmp_path / "own", *sums, "--own-key", tmp_path / "a")
    policy = Policy.load(tmp_path / "own" / "policy.toml")
    assert policy.identity(None).public.hex() == one
    assert policy.members((1, 0)) == (bytes.fromhex(other), bytes.fromhex(one))
    assert policy.most_colluders == 1
    assert_refused(init(capsys, tmp_path / "more", *sums), "must be given")


def test_status_and_check_show_refusals_and_write_nothing(capsys, tmp_path):
    init(capsys, tmp_path, "--mechanisms", "imvu")
    path = tmp_path / "policy.toml"
    send(path)
    declines(gate_of(Policy.load(path)), NotAllowed, request(1, NOISY))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found = shell(capsys, "node status", path, "--json").json
    (refusal,) = found["refusals"]
    assert (refusal["run"], refusal["reason"]) == ("7", "not-allowed")
    assert "gaussian" in refusal["in full"]  # which the server is not told
    assert shell(capsys, "node check", path).code == 0
    assert found["releases"] == 1
    assert {one["decision"]: one["requests"] for one in found["decisions"]} == {
        "accepted": 1,
        "not-allowed": 1,
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def vacuum(place, copy):
    """As `sqlite3 ledger "vacuum into 'backup/ledger'"` does."""
    with contextlib.closing(sqlite3.connect(place)) as database:
        database.execute("vacuum into ?", (str(copy),))


def test_backup_while_the_node_works(capsys, tmp_path):
    """As docs/how-to/own-a-node.md says: the counter is copied first."""
    init(capsys, tmp_path)
    path = tmp_path / "policy.toml"
    backup = tmp_path / "backup"
    backup.mkdir()
    send(path)
    vacuum(tmp_path / "counter", backup / "counter")
    send(path)
    vacuum(tmp_path / "ledger", backup / "ledger")
    send(path)
    assert FileLedger(backup / "ledger", backup / "counter").read().releases == 2
    shutil.copy(
        backup / "ledger", tmp_path / "ledger"
    )  # an old copy, beside the counter that was there
    assert shell(capsys, "node check", path).code == 1
    shutil.copy(
        tmp_path / "backup" / "counter", tmp_path / "counter"
    )  # both: nothing can notice this
    assert shell(capsys, "node check", path).code == 0
    assert send(path)
