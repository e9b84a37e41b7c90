"""What an honest app does to the process that it shares with the mod, by accident or driven by the
server's model.

Some of these once sent text to the server, were answered at once instead of at their moment, or
left a release that was noted and not made. Now a release leaves, of the update or of zero, at its
moment; nothing else does.
"""

import _thread
import atexit
import contextlib
import logging
import multiprocessing
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from engines.flower.kit import DIMENSION, context, gated, trained
from engines.flower.test_client import CONFIG, request
from federation.node.makers import books, write_policy
from quietbit.node.guard import GRAIN

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals and resource limits"),
]
PATIENT = "record of patient 4711 did not load"
SHIFT = np.linspace(-0.2, 0.3, DIMENSION)
SECONDS = 0.25
LOAD = 10.0  # seconds that a busy machine may be late
FORKED = []


@pytest.fixture(autouse=True)
def process():
    """Put back what an app changes in the process of the tests."""
    numbers = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    memory = resource.getrlimit(resource.RLIMIT_AS)
    root = list(logging.getLogger().handlers)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    resource.setrlimit(resource.RLIMIT_AS, memory)
    logging.getLogger().handlers[:] = root


def tells(*_):
    raise TimeoutError(PATIENT)


def alarmed(message, own):
    """A data loader with a time-out: its handler was installed when the app was imported."""
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(0.2)
    return trained(message, SHIFT)


def alarmed_often(message, own):
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
    time.sleep(0.2)
    return trained(message, SHIFT)


def alarmed_later(message, own):
    """The alarm goes off when the reply is on its way."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS + 2 * GRAIN)
    return trained(message, SHIFT)


def interrupts(message, own):
    _thread.interrupt_main()
    time.sleep(0.2)
    return trained(message, SHIFT)


def interrupts_later(message, own):
    threading.Timer(SECONDS / 2, _thread.interrupt_main).start()
    return trained(message, SHIFT)


def terminates(message, own):
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
    return trained(message, SHIFT)


def exits(*_):
    sys.exit(PATIENT)


def exits_in_a_thread(message, own):
    thread = threading.Thread(target=sys.exit, args=(PATIENT,))
    thread.start()
    thread.join()
    return trained(message, SHIFT)


def registers_an_exit(message, own):
    atexit.register(tells)
    atexit.unregister(tells)
    raise SystemExit(PATIENT)


def forks(message, own):
    """Workers of a data loader end when they are told to: they have the system's handlers, not
    ours.
    """
    kind = multiprocessing.get_context("fork")
    begun = kind.Event()
    worker = kind.Process(target=lambda: begun.set() or time.sleep(30))
    worker.start()
    begun.wait(5)
    worker.terminate()
    worker.join(5)
    FORKED.append(worker.exitcode)
    return trained(message, SHIFT)


class Loud(logging.Handler):
    """A handler of the app's that raises, as one does whose disk is full."""

    def emit(self, record):
        raise OSError(PATIENT)


class Stuck(logging.Handler):
    """A handler of the app's that does not return, as one does whose socket is full."""

    def emit(self, record):
        time.sleep(5.0)


def logs_aloud(message, own):
    logging.getLogger().addHandler(Loud())
    raise ValueError(PATIENT)


def logs_for_ever(message, own):
    logging.getLogger().addHandler(Stuck())
    raise ValueError(PATIENT)


def no_state(message, own):
    own.state = None
    return trained(message, SHIFT)


def odd_state(message, own):
    own.state = {"mine": {"a": PATIENT}}
    return trained(message, SHIFT)


class Torn(ConfigRecord):
    """A record that cannot be looked at."""

    def items(self):
        raise ValueError(PATIENT)

    keys = values = __iter__ = items


def torn_state(message, own):
    own.state["mine"] = Torn({"a": 1})
    return trained(message, SHIFT)


def takes_the_message_apart(message, own):
    message.metadata.__dict__.clear()
    message.content.clear()
    message.__dict__.clear()
    return Message(RecordDict(), reply_to=request())


def takes_the_context_apart(message, own):
    reply = trained(message, SHIFT)
    own.node_config.clear()
    own.run_config.clear()
    own.__dict__.clear()
    return reply


class Hostile:
    """An object that does nothing without raising."""

    def __getattribute__(self, name):
        raise ValueError(PATIENT)

    __str__ = __repr__ = __bool__ = __eq__ = __hash__ = tells


def hostile_reply(message, own):
    return Hostile()


class HostileError(Exception):
    """An exception whose text raises."""

    __str__ = __repr__ = tells


def hostile_error(message, own):
    raise HostileError(PATIENT)


class Slow(ArrayRecord):
    """Arrays that take longer to read than there is time."""

    def __getitem__(self, name):
        time.sleep(5.0)
        return super().__getitem__(name)


def slow_arrays(message, own):
    record = next(iter(message.content.array_records.values()))
    return Message(RecordDict({"arrays": Slow(dict(record))}), reply_to=message)


def generated(message, own):
    yield trained(message, SHIFT)


def recurses(message, own):
    return recurses(message, own)


def lower_recursion_limit():
    """Set the lowest limit that the interpreter accepts at this depth."""
    for limit in range(1, 1000):
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(limit)
            return


def low_recursion(message, own):
    lower_recursion_limit()
    raise ValueError(PATIENT)


def low_recursion_for_long(message, own):
    for _ in range(50):
        thread = threading.Thread(target=lower_recursion_limit)
        thread.start()
        thread.join()
        time.sleep(0.005)
    return trained(message, SHIFT)


def no_memory(message, own):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (2**20, hard))
    np.zeros(2**28)
    return trained(message, SHIFT)


def memory_error(message, own):
    raise MemoryError(PATIENT)


def endless_text(message, own):
    raise ValueError(PATIENT * 2**20)


def chained(message, own):
    error = ValueError(PATIENT)
    for _ in range(5000):
        inner = ValueError(PATIENT)
        inner.__cause__ = error
        error = inner
    raise error


def grouped(message, own):
    raise BaseExceptionGroup(PATIENT, [ValueError(PATIENT), KeyboardInterrupt()])


def interrupted(message, own):
    raise KeyboardInterrupt(PATIENT)


def stops(message, own):
    raise StopIteration(PATIENT)


class Wrong(MetricRecord):
    """Metrics that end the process of whoever reads them."""

    def get(self, *_):
        raise SystemExit(PATIENT)


def wrong_metrics(message, own):
    reply = trained(message, SHIFT)
    reply.content["metrics"] = Wrong({"train_loss": 0.5})
    return reply


def words_for_arrays(message, own):
    arrays = {name: Array(np.array([PATIENT])) for name in ("weight", "bias")}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


APPS = [
    alarmed,
    alarmed_often,
    alarmed_later,
    interrupts,
    interrupts_later,
    terminates,
    exits,
    exits_in_a_thread,
    registers_an_exit,
    forks,
    logs_aloud,
    logs_for_ever,
    no_state,
    odd_state,
    torn_state,
    takes_the_message_apart,
    takes_the_context_apart,
    hostile_reply,
    hostile_error,
    slow_arrays,
    generated,
    recurses,
    no_memory,
    memory_error,
    endless_text,
    chained,
    grouped,
    interrupted,
    stops,
    wrong_metrics,
    words_for_arrays,
]


@pytest.mark.parametrize("call", APPS, ids=lambda call: call.__name__)
def test_one_release_leaves_at_its_moment_whatever_the_app_does(tmp_path, call):
    """In the main thread, where signals are delivered; handlers are installed as an app's import
    would.
    """
    path = write_policy(tmp_path, epsilon=1e6, response_seconds=SECONDS, metrics=("train_loss",))
    place = context(11, config=CONFIG, quietbit_policy=path)
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, tells)
    asked = request()
    begun = time.time()
    reply = gated()(asked, place, call)
    left = time.time()
    assert not reply.has_error(), reply.error.reason
    stamp = reply.metadata.created_at
    assert stamp - begun >= SECONDS
    assert 0 <= left - stamp < LOAD
    assert set(reply.content) == {"quietbit", "quietbit-metrics"}
    assert reply.content["quietbit-metrics"] in (
        MetricRecord({"train_loss": value}) for value in (0.0, 0.25, 0.5)
    )
    assert reply.metadata.reply_to_message_id == "request-1"
    assert reply.metadata.dst_node_id == asked.metadata.src_node_id
    assert books(tmp_path).releases == 1
    assert place.run_config == CONFIG
    assert place.node_config["quietbit.policy"] == path
    assert set(place.state) <= {"quietbit", "mine"}
    # What comes when the reply is on its way must not reach the engine's frames either.
    time.sleep(2 * GRAIN if call is alarmed_later else 0.01)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if call is forks:
        end = (
            time.monotonic() + 5 * LOAD
        )  # the app may still be waiting for its worker on a busy machine
        while not FORKED and time.monotonic() < end:
            time.sleep(0.01)
        assert FORKED == [-signal.SIGTERM]


RECURSION = """
import sys, tempfile, warnings
from pathlib import Path

sys.path[:0] = {path!r}
warnings.simplefilter("ignore")
from attack.test_ways_of_an_app import *

for call in (low_recursion, low_recursion_for_long):
    policy = write_policy(Path(tempfile.mkdtemp()), epsilon=1e6, response_seconds=SECONDS)
    place = context(11, config=CONFIG, quietbit_policy=policy)
    begun = time.time()
    reply = gated()(request(), place, call)
    assert time.time() - begun >= SECONDS
    assert list(reply.content) == ["quietbit"]
    assert sys.getrecursionlimit() == 1000
print("released")
"""


@pytest.mark.slow
def test_an_app_that_lowers_the_recursion_limit_lets_a_release_out():
    """In a process of its own, whose main thread is as near to the limit as an engine's;
    pytest's is deeper.
    """
    root = Path(__file__).parents[2]
    code = RECURSION.format(path=[str(root / "tests"), str(root / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("released\n"), done.stderr[-4000:]
