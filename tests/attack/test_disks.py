"""A ledger on a disk that fails at any call, whose locks fail, and that several processes use.

SQLite writes it, so the failures are those of the C library (`disk.c`).
"""

import subprocess
import sys

import numpy as np
import pytest

from attack import disk
from federation.node.makers import MECHANISM, books, write_policy
from quietbit.node.sender import PrivateSender
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.skipif(not disk.is_possible(), reason="needs a C compiler on Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return disk.compiled(tmp_path_factory.mktemp("disk"))


INIT = """
import errno, pathlib, sys
from attack import disk
from quietbit.errors import QuietbitError
from quietbit.node.policy import init
rules = dict(epsilon=8.0, adjacency="zero-out", largest_clip=1.0, releases=9, releases_per_day=9)
shim, failures = disk.control(), 0
for which in range(1, 200):
    folder = pathlib.Path(sys.argv[1]) / str(which)
    folder.mkdir()
    shim.disk_arm(which, disk.WRITES, errno.ENOSPC)
    try:
        init(folder / "policy.toml", **rules)
    except QuietbitError:
        failures += 1
        shim.disk_arm(0, 0, 0)
        left = [path.name for path in folder.iterdir()]
        assert left == [], (which, left)
        init(folder / "policy.toml", **rules)
        continue
    if shim.disk_left() > 0:
        break
else:
    raise AssertionError("every call failed")
print(failures)
"""


def test_init_on_a_disk_that_fails_leaves_nothing(tmp_path, library):
    """Whichever call it is: what is left would be in the way of the next attempt."""
    assert int(disk.run(library, INIT, tmp_path)) >= 8


ACCEPT = """
import errno, pathlib, sys
from attack import disk
from quietbit.errors import QuietbitError
from federation.node.makers import books, keeper, request
folder, kinds, code = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
gate = keeper(folder, epsilon=1e6, releases=1000, releases_per_day=1000)
gate.accept(request(1))
shim, number, failures = disk.control(), 2, 0
for which in range(1, 200):
    shim.disk_arm(which, kinds, code)
    accepted = True
    try:
        gate.accept(request(number))
    except QuietbitError:
        accepted = False
        failures += 1
    happened = shim.disk_left() <= 0
    shim.disk_arm(0, 0, 0)
    noted = books(folder).last_round("7")
    assert noted == number or not accepted and noted == number - 1, (which, accepted, noted)
    number = noted + 1
    if not happened:
        break
else:
    raise AssertionError("every call failed")
assert books(folder).releases == number - 1
print(failures)
"""


@pytest.mark.parametrize("code", [pytest.param(5, marks=pytest.mark.long), 28])  # EIO, ENOSPC
def test_a_disk_that_fails_in_any_call_releases_nothing_and_counts_nothing_twice(
    tmp_path, library, code
):
    assert int(disk.run(library, ACCEPT, tmp_path, disk.WRITES, code)) >= 8


@pytest.mark.parametrize(
    "code", [4, pytest.param(5, marks=pytest.mark.long), 37]
)  # EINTR, EIO, ENOLCK
def test_locks_that_fail(tmp_path, library, code):
    """Without the lock nothing is read, noted or released."""
    assert int(disk.run(library, ACCEPT, tmp_path, disk.LOCKS, code)) >= 1


SEND = """
import sys
import numpy as np
from quietbit.node.refusal import BudgetSpent
from quietbit.node.sender import PrivateSender
from quietbit.wire.uplink import Uplink
from federation.node.makers import DIMENSION, MECHANISM
sender = PrivateSender(Uplink(MECHANISM), sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
made = 0
for _ in range(int(sys.argv[2])):
    try:
        sender.send(np.zeros(DIMENSION))
        made += 1
    except BudgetSpent:
        pass
print(made)
"""


@pytest.mark.parametrize(("budget", "times"), [pytest.param(1, 1, marks=pytest.mark.long), (7, 3)])
def test_processes_that_send_at_once_release_what_the_budget_allows(tmp_path, budget, times):
    path = write_policy(tmp_path, releases=budget)
    senders = [
        subprocess.Popen(
            [sys.executable, "-c", SEND, path, str(times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**disk.environment(disk.SOURCE), disk.PRELOAD: ""},
        )
        for _ in range(4)
    ]
    for sender in senders:
        assert sender.stdout.readline() == "ready\n"
    for sender in senders:
        sender.stdin.write("go\n")
        sender.stdin.flush()
    made = [int(sender.communicate(timeout=120)[0]) for sender in senders]
    assert sum(made) == budget == books(tmp_path).releases


KILLED = """
import os, pathlib, sys
from attack import disk
from federation.node.makers import books, keeper, request
folder = pathlib.Path(sys.argv[1])
gate = keeper(folder, epsilon=1e6, releases=1000, releases_per_day=1000)
gate.accept(request(1))
for which in range(1, 500):
    before = books(folder).last_round("7")
    child = os.fork()
    if child == 0:
        disk.control().disk_arm(which, disk.WRITES | disk.LOCKS, disk.KILL)
        gate.accept(request(before + 1))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after = books(folder).last_round("7")
    assert after in (before, before + 1), which
    if status == 0:
        assert after == before + 1
        break
    assert status == -9, status
else:
    raise AssertionError("every call killed")
print(which)
"""


def test_a_kill_before_any_call_leaves_a_ledger_that_is_read(tmp_path, library):
    """A journal that a kill left is rolled back; the round is noted or is not, never half."""
    assert int(disk.run(library, KILLED, tmp_path)) > 20


def test_a_whole_ledger_is_read_while_another_process_writes(tmp_path):
    """Every reader sees a ledger at least as long as its counter."""
    path = write_policy(tmp_path, epsilon=1e6)
    with subprocess.Popen(
        [sys.executable, "-c", SEND, path, "15"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**disk.environment(disk.SOURCE), disk.PRELOAD: ""},
    ) as writer:
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("go\n")
        writer.stdin.flush()
        seen = []
        while writer.poll() is None and len(seen) < 5000:
            seen.append(books(tmp_path).releases)
    assert seen == sorted(seen)
    assert len(PrivateSender(Uplink(MECHANISM), path).send(np.zeros(42))) > 0
    assert books(tmp_path).releases == 16
