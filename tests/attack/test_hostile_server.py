"""A server that wants more than it may have, against a node with a policy: every request is
counted.

Idea     what a server can choose is drawn at random from fixed seeds (run configs, mechanisms,
         models, orders of messages, moments of kills, copies and full disks), beside the requests
         that once worked. After every request the same promises are checked (`Node.ask`). `CASES`
         says how many requests each part asks, every night; `make test` asks a tenth. The threat
         model prints the same numbers, and a test compares them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from engines.flower.kit import CONFIG, DIMENSION, be_the_server, context, gated, model, trained
from federation.node.makers import write_policy
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.federation.messages import request_record, sum_request
from quietbit.federation.plan import KEYS as PLAN_KEYS
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node.budget import account_of
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.request import STEPS
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from quietbit_lab.baseline.noise import Sign

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
CASES = {
    "failures that depend on the data": 256,
    "run configs": 300,
    "mechanisms": 400,
    "models": 60,
    "orders of messages": 500,
    "copies put back": 60,
    "kills": 100,
    "full disks": 60,
}
SHARES = [pytest.param(10, id="a tenth"), pytest.param(1, id="all", marks=pytest.mark.long)]
DESIGN = solve(DesignSpec(2, 1, 0.3))
SMALL = InterpolatedMVU(DESIGN, Ball(Norm.L2, DIMENSION))
THREAT_MODEL = Path(__file__).parent.parent.parent / "docs" / "explanation" / "threat-model.md"


class Node:
    """A node with a policy, its app, and all that it has been made to say."""

    def __init__(self, folder, **changes):
        given = {
            "epsilon": 6.0,
            "mechanisms": ["imvu", "gaussian", "sign"],
            "seed": 7,
            "releases": 10**5,
            "releases_per_day": 10**5,
        } | changes
        self.folder = folder
        self.path = write_policy(folder, **given)
        self.policy = Policy.load(self.path)
        self.answers = {}
        self.calls = 0
        self.asked = 0

    def context(self, run=1, config=None):
        return context(
            11,
            3,
            CONFIG | {"quietbit.epsilon": 1e6} if config is None else config,
            run,
            quietbit_policy=self.path,
        )

    def books(self):
        return FileLedger(self.policy.ledger, self.policy.counter).read()

    def ask(self, message, place, app=None):
        """Carry a message and hold the node to its promises, whatever the message was."""
        before, called = self.books().releases, self.calls

        def watched(*words):
            self.calls += 1
            assert self.books().releases == before + 1, "the app ran before its release was noted"
            return (app or (lambda m, _: trained(m, np.full(DIMENSION, 0.1))))(*words)

        self.asked += 1
        reply = gated()(message, place, watched)
        books = self.books()
        if reply.has_error():
            said = reply.error.reason
            assert said.isprintable()
            assert said.startswith(("quietbit: ", "quietbit, answered before: "))
            assert not any(word in said for word in (str(self.folder), "policy.toml", "counter")), (
                said
            )
            assert books.releases == before
            assert self.calls == called
        elif message.metadata.message_type == "train" and "quietbit" in reply.content:
            assert books.releases == before + 1
            assert set(reply.content) == {"quietbit"}
            data = reply.content["quietbit"]["release"]
            name = message.content["quietbit"]["mechanism"]
            assert self.answers.setdefault(name, len(data)) == len(data), (
                "releases of one mechanism differ in size"
            )
        else:
            assert books.releases == before
            assert set(reply.content) <= {"quietbit-sum"}
        for cap in self.policy.caps:
            held = account_of(
                books, cap, self.policy.min_honest_clients or 0, self.policy.least_epsilon
            )
            assert held.epsilon() <= cap.epsilon
        return reply


def train(number=1, mechanism=SMALL, run=1, arrays=None, kind="train", **changes):
    be_the_server(run)
    record = request_record(max(1, number), mechanism) | {"round": number} | changes
    content = RecordDict(
        {"arrays": model() if arrays is None else arrays, "quietbit": ConfigRecord(record)}
    )
    return Message(content, 11, kind)


@pytest.fixture(params=SHARES)
def share(request):
    """Return by what the numbers of cases are divided."""
    return request.param


def test_failures_that_depend_on_the_data_tell_nothing(tmp_path, share):
    """A picture of 64 pixels was read out at epsilon 0.012, a pixel a request: a step failed
    where one was bright.
    """
    pixels = np.random.default_rng(1).integers(0, 2, 64 // share)
    node, faint = (
        Node(tmp_path, epsilon=1e4),
        InterpolatedMVU(DESIGN, Ball(Norm.L2, DIMENSION)),
    )
    size, number = set(), 0

    def fails(message, kind):
        if kind == 0:
            raise ValueError("bright")
        if kind == 1:
            return trained(message, np.full(DIMENSION, np.nan))
        if kind == 2:
            return Message(Error(1, "bright"), reply_to=message)
        sys.exit("bright")

    for kind in range(4):
        for pixel in pixels:
            number += 1
            app = (
                (lambda m, _, k=kind: fails(m, k))
                if pixel
                else (lambda m, _: trained(m, np.zeros(DIMENSION)))
            )
            reply = node.ask(train(number, faint), node.context(), app)
            assert not reply.has_error()
            size.add(len(reply.content["quietbit"]["release"]))
            # What leaves is that of zero, from the node's own randomness: bright or dark, bit for
            # bit the same.
            rng = node.policy.rng(number, 3)
            sent = bytes(Framed.from_bytes(reply.content["quietbit"]["release"]).payload)
            assert sent == Uplink(faint).send(np.zeros(DIMENSION), rng)
    assert len(size) == 1
    assert node.books().releases == number == 4 * len(pixels)
    assert number * share > 0.9 * CASES["failures that depend on the data"]


UNKNOWN_KEYS = [
    "words",
    "epsilom",
    "policy",
    "ledger",
    "honest",
    "metrics",
    "",
    "Epsilon",
    "threshold",
]
KEYS = [*PLAN_KEYS, *UNKNOWN_KEYS]
VALUES = [
    0,
    1,
    -1,
    2,
    7,
    1e-9,
    1e300,
    float("nan"),
    float("inf"),
    True,
    "",
    "seeded",
    "imvu",
    "gaussian",
    "zero-out",
    "replace-one",
    "secure-aggregation",
    "local",
    "*",
    "l1",
    "/etc/passwd",
    "\x1b[2J",
    "x" * 5000,
    10**30,
]


def test_run_configs(tmp_path, share):
    rng, node, answered = np.random.default_rng(2), Node(tmp_path), 0
    for case in range(CASES["run configs"] // share):
        config = CONFIG | {"quietbit.epsilon": 1e6}
        for _ in range(rng.integers(1, 4)):
            key = "quietbit" + rng.choice([".", ".", ".", "-", "_"]) + str(rng.choice(KEYS))
            if rng.random() < 0.2:
                config.pop(key, None)
            else:
                config[key] = VALUES[rng.integers(len(VALUES))]
        reply = node.ask(train(1, run=case + 1), node.context(case + 1, config))
        answered += not reply.has_error()
        unknown = [key for key in config if key.startswith("quietbit") and key not in known_keys()]
        assert not (unknown and not reply.has_error()), unknown
    assert answered > 0
    assert node.asked == CASES["run configs"] // share


def known_keys():
    return {"quietbit." + key for key in PLAN_KEYS}


def mutated(rng, value):
    """A description with one thing changed, wherever that is."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.integers(len(value))
        return [
            mutated(rng, part) if number == place else part for number, part in enumerate(value)
        ]
    if isinstance(value, float) and rng.random() < 0.6:
        return float(value) * float(rng.choice([0.5, 1.01, 2.0, -1.0, 1e3, 1e-3]))
    return [
        0,
        -1,
        1e308,
        None,
        "Gaussian",
        "os.system",
        [],
        {},
        True,
        42,
        2**70,
        "l1",
        1e-300,
        [[]],
    ][rng.integers(14)]


def test_mechanisms(tmp_path, share):
    """Descriptions that a server makes up: built and priced as they are, or refused; the cap
    holds.
    """
    ball = Ball(Norm.L2, DIMENSION)
    good = [
        SMALL,
        Gaussian(ball, 3.0),
        Sign(Gaussian(ball, 3.0)),
        InterpolatedMVU(DESIGN, ball, 0.5, True),
    ]
    texts = [request_record(1, one)["mechanism"] for one in good]
    rng, node, answered = np.random.default_rng(3), Node(tmp_path, epsilon=30.0 / share), 0
    for case in range(CASES["mechanisms"] // share):
        found = json.loads(texts[rng.integers(len(texts))])
        for _ in range(rng.integers(0, 3)):
            found = mutated(rng, found)
        text = json.dumps(found)
        if rng.random() < 0.05:
            text = text[: rng.integers(len(text))] + "\x00" * int(rng.integers(3))
        reply = node.ask(_described(text, case + 1), node.context(case + 1))
        answered += not reply.has_error()
    assert 0 < answered < CASES["mechanisms"] // share
    assert account_of(node.books(), node.policy.caps[0]).epsilon() <= node.policy.epsilon
    assert node.asked == CASES["mechanisms"] // share


def _described(text, run):
    message = train(1, run=run)
    message.content["quietbit"] = ConfigRecord(
        dict(message.content["quietbit"]) | {"mechanism": text}
    )
    return message


def odd_models(rng, case):
    """Weights chosen to break training, and arrays that are none; and whether they are refused."""
    given = dict(model(case))
    shape = given["weight"].shape

    def weight(array):
        return {**given, "weight": array}

    odd = np.float32([np.nan, np.inf, -np.inf][case % 3])
    noise = rng.bytes(rng.integers(0, 200))
    return [
        (weight(Array(np.full(shape, odd))), True),
        (weight(Array(np.full(shape, np.float32(3e38)))), False),
        (weight(Array("float32", shape, "numpy.ndarray", noise)), True),
        (weight(Array("float32", shape, "pickle", b"cos\nsystem\n(S'true'\ntR.")), True),
        ({"weight": given["weight"]}, True),
        ({**given, "more": Array(np.zeros(3))}, True),
        (weight(Array(np.zeros((7, 5), dtype=np.float32))), False),
        ({**given, "bias": Array(np.zeros(7, dtype=np.int64))}, True),
        (weight(Array(np.zeros(shape, dtype=np.float64) + 1e308)), False),
        ({}, True),
    ]


def test_models(tmp_path, share):
    rng, node, run = np.random.default_rng(4), Node(tmp_path, epsilon=1e4), 0
    for case in range(max(1, CASES["models"] // share // 10)):
        for arrays, is_refused in odd_models(rng, case):
            run += 1
            before = node.books().releases
            reply = node.ask(train(1, run=run, arrays=ArrayRecord(arrays)), node.context(run))
            assert reply.has_error() == is_refused, (run, reply)
            assert node.books().releases == before + (not is_refused)


SUMS = {
    "trust": ["local", "secure-aggregation"],
    "min_honest_clients": 3,
    "local_epsilon": 40.0,
    "adjacency": "zero-out",
}
SECURE = {key: value for key, value in CONFIG.items() if key != "quietbit.releases"} | {
    "quietbit.trust": "secure-aggregation",
    "quietbit.secure-aggregation.adversary": "honest-but-curious",
    "quietbit.secure-aggregation.threshold": 4,
    "quietbit.adjacency": "zero-out",
    "quietbit.mechanism.design-epsilon": 0.3,
    "quietbit.epsilon": 1e6,
}


def test_orders_of_messages(tmp_path, share):
    """Trainings, evaluations, queries and steps of sums in any order, of any round: one answer
    to each at most.
    """
    rng, node = np.random.default_rng(5), Node(tmp_path, epsilon=40.0, **SUMS)
    places = {run: node.context(run, SECURE if run % 2 else None) for run in (1, 2, 3, 4)}
    answered = []
    tables = [
        b"",
        bytes(100 * 4),
        b"\x0f\x0e" + rng.bytes(3 * 80),
        b"\x0f\0\0",
        b"\x0f" + rng.bytes(64 + 3 * 96),
        rng.bytes(37),
    ]
    for _ in range(max(150, CASES["orders of messages"] // share)):
        run, number = int(rng.integers(1, 5)), int(rng.integers(0, 6))
        kind = str(rng.choice(["train", "train", "train", "evaluate", "query"]))
        message, step = train(number, run=run, kind=kind), None
        if rng.random() < 0.8 and run % 2:
            step = str(rng.choice([*STEPS, "five"]))
            numbers = int(rng.integers(1, 9)), int(rng.integers(0, 6))
            part = sum_request(step, *numbers, tables[rng.integers(len(tables))])
            message.content["quietbit-sum"] = ConfigRecord(part)
        reply = node.ask(message, places[run])
        if kind != "train":
            assert not reply.has_error()
            assert dict(reply.content) == {}
        elif not reply.has_error():
            assert number >= 1
            assert step != "vector", "no sum had enough genuine shares"
            answered.append((run, number, step))
    assert len(set(answered)) == len(answered)
    assert {None, "keys"} <= {step for _, _, step in answered}


def copy(source, target, names=("ledger", "counter")):
    for name in names:
        shutil.copy(source / name, target / name)


def test_copies_put_back(tmp_path, share):
    """An older ledger, an older counter, or both, at any moment: never a release too many."""
    rng, node = np.random.default_rng(6), Node(tmp_path, epsilon=1e4)
    copies, newest = [], 0
    place = node.context()  # the same run goes on
    for case in range(CASES["copies put back"] // share):
        copies.append(tmp_path / f"copy-{case}")
        copies[-1].mkdir()
        copy(tmp_path, copies[-1])
        newest += 1
        assert not node.ask(train(newest), place).has_error()
        now = tmp_path / f"now-{case}"
        now.mkdir()
        copy(tmp_path, now)
        what = (["ledger"], ["ledger", "counter"], [], ["counter"])[case % 4]
        copy(copies[rng.integers(len(copies))], tmp_path, what)
        if not what:
            (tmp_path / "ledger").unlink()
        reply = gated()(train(newest + 1), place, lambda m, _: trained(m, np.zeros(DIMENSION)))
        # A ledger ahead of its counter is what a crash leaves: the ledger counts.
        assert reply.has_error() == (what != ["counter"]), what
        if reply.has_error():
            copy(now, tmp_path)
        else:
            newest += 1
    assert node.books().releases == newest > CASES["copies put back"] // share


NURSERY = """
import os, random, resource, signal, sys, time
import numpy as np
from quietbit.node.ledger import FileLedger, LedgerError
from quietbit.node.policy import Policy
from quietbit.node.request import ProposedMechanism
from quietbit.node.sender import PrivateSender
from quietbit.wire.uplink import Uplink
what, path, cases = sys.argv[1], sys.argv[2], int(sys.argv[3])
uplink, rng, policy = Uplink(ProposedMechanism.read(sys.stdin.read()).mechanism), random.Random(7), Policy.load(path)
size = len(PrivateSender(uplink, path).send(np.zeros(42)))

def releases():
    return FileLedger(policy.ledger, policy.counter).read().releases

def release_for_ever(limit, said):
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sender = PrivateSender(uplink, path)
    try:
        while True:
            assert len(sender.send(np.zeros(42))) == size
            os.write(said, b".")
    except LedgerError:
        os._exit(3)

for case in range(cases):
    before = releases()
    limit = os.stat(policy.ledger).st_size + rng.randrange(6_000) if what == "full" else 0
    hear, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hear)
        try:
            release_for_ever(limit, say)
        finally:
            os._exit(4)
    os.close(say)
    heard = os.read(hear, 1) if case % 2 else b""  # every other one has begun to release
    if what == "kill":
        time.sleep(rng.random() * 0.05)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    while piece := os.read(hear, 4096):
        heard += piece
    os.close(hear)
    made = releases() - before
    if what == "kill":
        assert made >= len(heard), (made, heard)
    else:
        assert os.waitstatus_to_exitcode(status) == 3, status
        assert len(heard) <= made <= len(heard) + 1, (made, heard)
    print(made, flush=True)
"""


def nursery(what, path, cases):
    """Start so many processes that release without end; each is killed at some moment, or its
    disk is full at some.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NURSERY, what, path, str(cases)],
        input=request_record(1, SMALL)["mechanism"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


FILES = {
    "ledger",
    "counter",
    "counter-journal",
    "ledger-journal",
    "ledger.key",
    "policy.toml",
}


def test_kills(tmp_path, share):
    """A process that is killed at any moment has released no more than its ledger says, and
    leaves nothing behind.
    """
    node = Node(tmp_path, epsilon=1e6)
    made = nursery("kill", node.path, CASES["kills"] // share)
    assert len(made) == CASES["kills"] // share
    assert sum(made) > 0
    assert node.books().releases == sum(made) + 1
    assert {path.name for path in tmp_path.iterdir()} <= FILES


def test_full_disks(tmp_path, share):
    """What does not fit on the disk is not released, and the ledger can still be read."""
    node = Node(tmp_path, epsilon=1e6)
    made = nursery("full", node.path, CASES["full disks"] // share)
    assert node.books().releases == sum(made) + 1
    assert len(set(made)) > 1


def test_the_threat_model_prints_this_number():
    text = THREAT_MODEL.read_text(encoding="utf-8")
    assert f"{sum(CASES.values()):,} hostile requests" in text


def test_a_metric_is_what_the_owner_names_and_nothing_more(tmp_path):
    node = Node(tmp_path, metrics=["loss"])
    reply = gated()(
        train(kind="evaluate"),
        node.context(),
        lambda m, _: Message(
            RecordDict({"metrics": MetricRecord({"loss": [1.0] * 1000, "pixels": [0.0] * 64})}),
            reply_to=m,
        ),
    )
    assert {name: dict(record) for name, record in reply.content.items()} == {
        "quietbit-metrics": {"loss": 0.0}
    }
