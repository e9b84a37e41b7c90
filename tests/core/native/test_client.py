"""A client without Python gives the payloads of Python's, and refuses what it must."""

import base64
import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.native.kit import (
    BUDGET,
    DAMAGED,
    DIMENSION,
    FLAGS,
    LEDGER,
    OK,
    TARGET,
    UNKNOWN,
    Client,
    by_python,
    compiled,
    table_of,
    text_of,
    updates,
    uplinks,
)
from core.native.vector_maker import WRITTEN, file_of, vectors
from quietbit import Ball, Gaussian, Uplink
from quietbit.client_table import MOST_RELEASES, client_table, ledger_begin, ledger_line
from quietbit.kernel.c import build
from quietbit.node.request import description_of
from quietbit.target import Adjacency, Target
from refusals import refuses

COMPILER = build.find_compiler()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
EXAMPLE = Path(__file__).parents[3] / "examples" / "c-client" / "client.c"
KNOWN = uplinks()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    return ctypes.CDLL(str(compiled(folder, "client.so", COMPILER, "-O1", "-shared", "-fPIC")))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example's program, for every test that runs it."""
    warned = ("-O1", "-DQB_STATIC", "-Wall", "-Wextra", "-Werror")
    return compiled(tmp_path_factory.mktemp("program"), "client", COMPILER, *warned, str(EXAMPLE))


@pytest.fixture(scope="module")
def client(library):
    opened = Client(library, client_table(list(KNOWN.values()), TARGET))
    assert opened.status == OK
    return opened


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_payloads_are_those_of_python(client, name, count):
    """Of the canonical text, and of the description."""
    uplink = KNOWN[name]
    keys = np.random.default_rng(count).bytes(32 * count)
    texts = (text_of(uplink), description_of(uplink.mechanism, uplink.clip))
    for number, update in enumerate(updates(uplink.mechanism.ball.dimension, count, count)):
        key = keys[32 * number : 32 * number + 32]
        found = client.release(texts[number % 2], update, key)
        assert found == (OK, by_python(uplink, update, key)), number


def test_a_payload_is_received(client):
    uplink = KNOWN["a seed"]
    update = np.full(650, 0.01, np.float32)
    payloads = [client.release(text_of(uplink), update, bytes([k]) * 32)[1] for k in range(40)]
    assert {len(payload) for payload in payloads} == {80}
    mean = uplink.receive(payloads)
    assert float(mean @ update) > 0


def changed_texts(count, seed):
    """Texts that differ from an allowed one in a character, in their length, or in their
    numbers.
    """
    generator = np.random.default_rng(seed)
    allowed = [text_of(uplink) for uplink in KNOWN.values()]
    texts = []
    while len(texts) < count:
        text = allowed[len(texts) % len(allowed)]
        place = int(generator.integers(len(text)))
        match len(texts) % 4:
            case 0:
                text = text[:place] + chr(33 + int(generator.integers(90))) + text[place + 1 :]
            case 1:
                text = text[:place]
            case 2:
                text = text[:place] + text[place:].replace("0", "1", 1) + " "
            case _:
                text = text.replace('"radius":', f'"radius":{int(generator.integers(1, 9))}', 1)
        if text not in allowed:
            texts.append(text)
    return texts


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_what_the_owner_did_not_allow_is_refused(client, count):
    """Python's answer is whether the text is one of those that the owner allowed."""
    update = np.zeros(650, np.float32)
    for text in changed_texts(count, seed=3):
        assert client.release(text, update, bytes(32)) == (UNKNOWN, b"")


@pytest.mark.parametrize("name", KNOWN)
def test_updates_that_cannot_be_clipped_are_released_as_zero(client, name):
    """As a node in Python does: that nothing is sent would tell something of the update."""
    uplink = KNOWN[name]
    text = text_of(uplink)
    for number, bad in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        key = bytes([number]) * 32
        zero = np.zeros(uplink.mechanism.ball.dimension, np.float32)
        assert client.release(text, zero[:-1], key)[0] == DIMENSION
        update = updates(uplink.mechanism.ball.dimension, 5, 2)[4]
        update[(number * 7) % update.size] = bad
        assert client.release(text, update, key) == (OK, by_python(uplink, zero, key))
        with refuses("update"):
            by_python(uplink, update, key)


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
@pytest.mark.parametrize("source", ["quietbit.c", "quietbit_client.c"])
def test_builds_in_which_a_nan_may_pass_for_a_number_are_refused(source, flag):
    words = [*COMPILER, "-std=c11", "-fsyntax-only", flag, str(build.FOLDER / source)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error" in done.stderr
    assert "build without" in done.stderr


def test_the_self_test_sees_that_a_nan_passes_for_a_number(tmp_path):
    """Should a compiler not say that it was told so."""
    silent = (*FLAGS, "-O1", "-shared", "-fPIC", "-ffinite-math-only", "-U__FINITE_MATH_ONLY__")
    target = tmp_path / "silent.so"
    sources = [str(build.FOLDER / "quietbit.c"), "-o", str(target)]
    done = subprocess.run([*COMPILER, *silent, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ctypes.CDLL(str(target)).qb_self_test() == 9


def test_prices_hold_and_budgets_end(library):
    one = KNOWN["a seed"]
    target = Target(30.0, 1e-5, "zero-out")
    single = Client(library, client_table([one], target))
    budget = single.table.budget
    cost = one.mechanism.cost(target.adjacency)
    assert (
        (cost * budget).epsilon(target.delta)
        <= target.epsilon
        < (cost * (budget + 1)).epsilon(target.delta)
    )
    text = text_of(one)
    assert single.line(text, budget - 1)[0] == OK
    assert single.line(text, budget)[0] == BUDGET
    assert single.line(text, 2**64 - 1)[0] == BUDGET
    # Several: whatever was chosen, the sum of all releases keeps the target.
    others = [KNOWN[name] for name in ("one bit, rotated", "a seed", "one bit")]
    several = Client(library, client_table(others, target))
    spent = 0
    total = None
    for number in range(10_000):
        chosen = others[number % 3]
        status, line = several.line(text_of(chosen), spent)
        if status == BUDGET:
            break
        spent = int(line.split()[2])
        now = chosen.mechanism.cost(target.adjacency)
        total = now if total is None else total + now
    assert number > 3
    assert total.epsilon(target.delta) <= target.epsilon


def test_ledgers_are_read_as_they_were_written(client):
    table = client.memory.view(np.uint8).tobytes()[: int(client.memory[1])]
    first, second = KNOWN["a seed"], KNOWN["one bit"]
    ledger = ledger_begin(table)
    assert client.spent(ledger) == (OK, 0)
    spent = 0
    for uplink in (first, second, first):
        status, line = client.line(text_of(uplink), spent)
        assert status == OK
        cost = int(line.split()[1])
        assert line == ledger_line(uplink, cost, spent)
        ledger += line
        spent += cost
    assert client.spent(ledger) == (OK, spent)
    for place in range(0, len(ledger), 7):
        assert client.spent(ledger[:place])[0] == (LEDGER if place not in _ends(ledger) else OK)
        other = ledger[:place] + ("0" if ledger[place] != "0" else "1") + ledger[place + 1 :]
        assert client.spent(other)[0] == LEDGER
    lines = ledger.splitlines(keepends=True)
    assert client.spent("".join([lines[0], *lines[2:]]))[0] == LEDGER  # a release was taken out


def _ends(ledger):
    return {place + 1 for place, letter in enumerate(ledger) if letter == "\n"}


def test_a_damaged_table_is_refused(library):
    table = client_table([KNOWN["one bit"], KNOWN["a seed"]], TARGET)
    for place in range(0, len(table), 1009):
        changed = bytearray(table)
        changed[place] ^= 4
        assert Client(library, bytes(changed)).status == DAMAGED
    for size in (0, 39, 71, len(table) - 1):
        assert Client(library, table[:size]).status == DAMAGED


def test_a_forged_table_reads_nothing_beyond_its_bytes(library):
    """Whoever can write the table decides what is released, but a wrong number in it must not be
    a wrong pointer.
    """
    generator = np.random.default_rng(5)
    known = [KNOWN["two bits"], KNOWN["a seed"], KNOWN["one bit, rotated"]]
    table = client_table(known, TARGET)
    for number in range(100):
        changed = bytearray(table[:-32])
        place = 40 + 8 * int(generator.integers(0, 3 * 432 // 8))
        changed[place : place + 8] = generator.bytes(8) if number % 2 else bytes(7) + b"\x7f"
        opened = Client(library, bytes(changed) + hashlib.sha256(changed).digest())
        for uplink in known if opened.status == OK else ():
            zero = np.zeros(uplink.mechanism.ball.dimension, np.float32)
            opened.release(text_of(uplink), zero, bytes(32))


def test_other_uplinks_have_no_client_in_c():
    with refuses("mechanism"):
        client_table([Uplink(Gaussian(Ball("l2", 5), 1.0))], TARGET)
    with refuses("epsilon"):
        client_table([KNOWN["a seed"]], Target(1e-3, 1e-5, "zero-out"))


class Device:
    """A folder with a table, a text and an update, and the example's program."""

    def __init__(self, folder, program, name, target):
        self.folder, self.program, self.uplink = folder, program, KNOWN[name]
        self.update = updates(650, 5, 1)[4]
        self.table = client_table([self.uplink], target)
        self.budget = int.from_bytes(self.table[16:24], "little")
        (folder / "table").write_bytes(self.table)
        (folder / "text").write_text(text_of(self.uplink))
        self.update.tofile(folder / "update")

    def start(self, *words, **environment):
        command = [str(self.program), *words]
        given = os.environ | environment
        return subprocess.Popen(command, cwd=self.folder, env=given, stderr=subprocess.DEVNULL)

    def run(self, *words):
        return self.start(*words).wait(10)

    def send(self, payload="payload", *key):
        return self.run("table", "ledger", "text", "update", payload, *key)


@pytest.fixture
def device(tmp_path, program):
    return Device(tmp_path, program, "one bit, rotated", Target(9.0, 1e-5, "zero-out"))


def test_the_client_on_the_command_line(device):
    folder, run = device.folder, device.run
    (folder / "other").write_text(text_of(KNOWN["a seed"]))
    assert device.send() == 20  # no ledger: not a new budget
    assert run("table", "ledger") == 0
    assert run("table", "ledger") == 20
    assert run("table", "ledger", "other", "update", "payload") == UNKNOWN
    assert run("table", "ledger", "text", "text", "payload") == DIMENSION
    assert (folder / "ledger").read_text() == ledger_begin(device.table)
    assert device.send("payload", "ab" * 32) == 0
    expected = by_python(device.uplink, device.update, b"\xab" * 32)
    assert (folder / "payload").read_bytes() == expected
    for _ in range(device.budget - 1):
        assert device.send() == 0
    assert device.send() == BUDGET
    assert len((folder / "ledger").read_text().splitlines()) == device.budget + 1
    with (folder / "ledger").open("a") as ledger:
        ledger.write("x")
    assert device.send() == LEDGER


SLOW_WRITE = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
ssize_t write(int file, const void *from, size_t size) {
    usleep(300000);
    return syscall(SYS_write, file, from, size);
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="slows a system call down by LD_PRELOAD")
def test_processes_share_one_budget(tmp_path, program):
    """Each waits between reading the ledger and writing to it; the budget is one release."""
    (tmp_path / "slow.c").write_text(SLOW_WRITE)
    slow = [*COMPILER, "-shared", "-fPIC", "slow.c", "-o", "slow.so"]
    subprocess.run(slow, cwd=tmp_path, check=True)
    epsilon = KNOWN["a seed"].mechanism.cost(Adjacency.ZERO_OUT).epsilon(1e-5)
    device = Device(tmp_path, program, "a seed", Target(epsilon * 1.01, 1e-5, "zero-out"))
    assert device.budget == 1
    assert device.run("table", "ledger") == 0
    sending = [
        device.start(
            *("table", "ledger", "text", "update", f"payload{number}"),
            LD_PRELOAD=str(tmp_path / "slow.so"),
        )
        for number in range(4)
    ]
    assert sorted(one.wait() for one in sending) == [OK, BUDGET, BUDGET, BUDGET]
    assert len(list(tmp_path.glob("payload*"))) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_a_ledger_is_a_regular_file_of_its_owner(device):
    ledger, elsewhere = device.folder / "ledger", device.folder / "elsewhere"
    os.mkfifo(ledger)
    assert device.send() == 20
    assert device.run("ledger", "ledger") == 20  # nor is any other file waited for
    assert device.run("table", "ledger", "ledger", "update", "payload") == 20
    ledger.unlink()
    assert device.run("table", "elsewhere") == 0
    ledger.symlink_to("elsewhere")
    assert device.send() == 20
    ledger.unlink()
    ledger.hardlink_to(elsewhere)
    assert device.send() == 20
    elsewhere.unlink()
    for mode in (0o666, 0o620, 0o602):
        ledger.chmod(mode)
        assert device.send() == 20
    ledger.chmod(0o600)
    assert device.send() == OK


def test_flags_of_the_tests_are_those_of_the_build():
    assert {flag for flag in FLAGS if flag != "-DQB_PORTABLE"} <= set(build.FLAGS)


def check_table(table, uplink):
    """A table is another one of the uplink but for its budget, and that is the target's."""
    content = table_of(uplink)[:16] + table[16:24] + table_of(uplink)[24:-32]
    assert table == content + hashlib.sha256(content).digest()
    budget = int.from_bytes(table[16:24], "little")
    cost = uplink.mechanism.cost(TARGET.adjacency)
    assert (cost * budget).epsilon(TARGET.delta) <= TARGET.epsilon
    assert budget == MOST_RELEASES or (cost * (budget + 1)).epsilon(TARGET.delta) > TARGET.epsilon


@pytest.mark.parametrize("name", WRITTEN)
def test_conformance_vectors_are_kept(library, name):
    """The files are what Python writes today, and what C does."""
    content = json.loads(file_of(name).read_text())
    table = table_of(KNOWN[name])
    if content["table"] is not None:  # it is short enough for a file
        table = base64.b64decode(content["table"])
        check_table(table, KNOWN[name])
    assert content == json.loads(json.dumps(vectors(name, KNOWN[name], table)))
    opened = Client(library, table)
    assert opened.status == OK
    for release in [*content["releases"], *content["zeroed"]]:
        update = np.frombuffer(bytes.fromhex(release["update"]), "<f4")
        sent = opened.release(content["text"], update, bytes.fromhex(release["key"]))
        assert sent == (OK, bytes.fromhex(release["payload"]))
        assert (
            opened.release(content["description_text"], update, bytes.fromhex(release["key"]))
            == sent
        )
    for text in content["refused"]["texts"]:
        assert opened.find(text) is None
    for refused in content["refused"]["updates"]:
        update = np.frombuffer(bytes.fromhex(refused["update"]), "<f4")
        assert refused["reason"] == "dimension"
        assert opened.release(content["text"], update, bytes(32))[0] == DIMENSION
