"""Every exit of a client: an exception at each of its lines, one answer per line, and what leaves
then.

Engines send the text of whatever a mod raises to the server, at once. An app's signal handler, a
`MemoryError`, or a handler of its log can raise between any two lines. What leaves is a release at
its moment, of the update or of zero; or, where nothing was noted, a constant.
"""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count

import numpy as np
import pytest

from attack.every_line import PATIENT, Fault, Tracer, following, under
from federation.node.makers import books, write_policy
from quietbit.federation.messages import ANSWERED, DECLINED
from quietbit.node import guard
from quietbit.node.guard import GRAIN
from quietbit.node.refusal import Reason, Refusal

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
SECONDS = 0.75
RULES = {"epsilon": 1e6, "response_seconds": SECONDS}
AT_ONCE = 24  # answers that wait side by side
LOAD = 10.0  # seconds that a busy machine may be late
SHARED = ("federation.client", "federation.part", "federation.parts.update", "node.guard")
DECLINES = Refusal(Reason.UNUSABLE).to_text(), Refusal(Reason.NOTED).to_text()
MAIN_THREAD = ("disarm", "rearm")  # where alone these lines run
NUMBERS = count()


def raises(*_):
    raise ValueError(PATIENT)


class FlowerNode:
    """The first request of a new node, and its reply."""

    modules = (*SHARED, "flower.client")
    calls = "_run_app"  # once this line is reached, a release leaves
    some = 80  # lines after which one leaves, at least
    signals = True

    def __init__(self, home, fails):
        from engines.flower.kit import DIMENSION, app, context
        from engines.flower.test_client import CONFIG, request
        from quietbit.flower import PrivateClientApp

        path = write_policy(home, metrics=("train_loss",), **RULES)
        place = context(11, config=CONFIG, quietbit_policy=path)
        asked = request()
        private = PrivateClientApp()
        private.train()(raises if fails else app(np.linspace(-0.2, 0.3, DIMENSION)))
        self.answers = lambda: private(asked, place)

    def may_raise(self, line, lines):
        """At the first line of the call alone, before its frame has begun."""
        return line == lines[0]

    def release(self, reply, left):
        """Return the release of a reply that may leave; None where it declines."""
        if reply.has_error():
            constants = [f"{DECLINED}{DECLINES[0]}", f"{ANSWERED}{DECLINES[1]}"]
            assert reply.error.reason in constants
            return None
        stamp = reply.metadata.created_at
        assert stamp / GRAIN == round(stamp / GRAIN)
        assert 0 <= left - stamp < LOAD
        assert set(reply.content) == {"quietbit", "quietbit-metrics"}
        metrics = dict(reply.content["quietbit-metrics"])
        assert metrics in ({"train_loss": 0.0}, {"train_loss": 0.25})
        return reply.content["quietbit"]["release"]


class FlareSite:
    """The first task of a new site, and its result."""

    modules = (
        *SHARED,
        *(f"nvflare.{name}" for name in ("client", "patches", "processing", "task")),
    )
    calls = "execute_task"
    some = 100
    signals = False  # tried with Flower

    def __init__(self, home, fails):
        from engines.nvflare.kit import CONFIG, Server, Site, trained

        properties = {"quietbit.policy": write_policy(home, metrics=("loss",), **RULES)}
        self.site = Site(raises if fails else trained(), simulated=False, properties=properties)
        asked = Server(CONFIG).asks()
        self.begun = time.time()
        self.answers = lambda: self.site.does(asked)

    def may_raise(self, line, lines):
        """Before its frame has begun, or at its last line."""
        return line[1] in {"process_task", "_aux", "_send_task_result"}

    def release(self, reply, left):
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.fuel.utils import fobs

        from engines.nvflare.kit import content, public_names

        assert public_names(reply) == set()
        assert PATIENT.encode() not in fobs.dumps(reply)
        if reply.get_return_code() != ReturnCode.OK:
            assert content(reply) == {}
            return None
        assert set(content(reply)) == {"quietbit"}
        record = content(reply)["quietbit"]
        if "declined" in record:
            assert record["declined"] in DECLINES
            return None
        assert set(record) == {"release", "metrics"}
        assert record["metrics"] == {"loss": 0.0}
        sent = self.site.engine.sent
        (moment,) = [one["moment"] for one in sent if one["topic"] == "__task_check__"]
        assert SECONDS <= moment - self.begun < SECONDS + GRAIN + LOAD
        return record["release"]


class Attempt:
    """An answer with an exception at a line, or none."""

    def __init__(self, folder, engine, fails, at=None):
        self.home = folder / str(next(NUMBERS))
        self.home.mkdir()
        files = {import_module(f"quietbit.{name}").__file__ for name in engine.modules}
        self.tracer = Tracer(frozenset(files), at)
        self.node = engine(self.home, fails)
        self.reply = under(self.tracer, self.node.answers)
        self.left = time.time()

    def kind(self, size):
        """Return what kind of answer this is; fail where it is none that may leave."""
        if isinstance(self.reply, Fault):
            return "raised"
        assert not isinstance(self.reply, BaseException), (self.tracer.at, self.reply)
        release = self.node.release(self.reply, self.left)
        if release is None:
            return "declined"
        assert len(release) == size, self.tracer.at
        assert books(self.home).releases == 1
        return "released"


@pytest.mark.parametrize(
    ("fails", "step"),
    [
        pytest.param(False, 4, id="a quarter of the lines"),
        pytest.param(False, 1, id="trains", marks=pytest.mark.long),
        pytest.param(True, 1, id="fails", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(("name", "engine"), [("flwr", FlowerNode), ("nvflare", FlareSite)])
def test_an_exception_at_any_line_lets_out_a_release_at_its_moment_or_a_constant(
    tmp_path, monkeypatch, name, engine, fails, step
):
    pytest.importorskip(name)
    monkeypatch.setattr(guard, "GRACE", 2.0)
    if engine is FlareSite:
        site = "quietbit.nvflare.client"
        monkeypatch.setattr(f"{site}.is_log_streaming_allowed", lambda fl_ctx: False)
    guard.quiet_handlers()  # once per process

    def attempt(line=None):
        return Attempt(tmp_path, engine, fails, line)

    with following():
        attempt()  # fills caches
        whole = attempt()
        size = len(whole.node.release(whole.reply, whole.left))
        assert whole.kind(size) == "released"
        seen = list(whole.tracer.seen)
        assert len(seen) > 200
        lines = [line for line in seen if line[1] not in MAIN_THREAD]
        late = lines[[function for _, function, _ in lines].index(engine.calls) :]
        results = []
        if engine.signals:
            for line in [line for line in seen if line[1] in MAIN_THREAD][::step]:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                results.append(attempt(line))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results += pool.map(attempt, lines[::step])
        # CPython's parser, which formats tracebacks, fails now and then where a tracer raises in
        # another thread.
        for place, one in enumerate(results):
            if isinstance(one.reply, SystemError) and "AST constructor" in str(one.reply):
                results[place] = attempt(one.tracer.at)
    # Which lines a thread passes depends, for a few, on when it wakes: nearly all were reached
    # again.
    assert sum(one.tracer.raised for one in results) > 0.95 * len(results)
    kinds = [(one.tracer.at, one.kind(size)) for one in results]
    raised = [line for line, kind in kinds if kind == "raised"]
    assert raised
    assert [line for line in raised if not whole.node.may_raise(line, seen)] == []
    assert sum(kind == "released" for _, kind in kinds) > engine.some / step
    assert [line for line, kind in kinds if kind == "declined" and line in late] == []
