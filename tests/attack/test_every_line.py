"""Every exit of a client: an exception at each of its lines, one answer per line, and what leaves
then.

Engines send the text of whatever a mod raises to the server, at once. An app's signal handler, a
`MemoryError`, or a handler of its log can raise between any two lines. What leaves is a release at
its moment, of the update or of zero; or, where nothing was noted, a constant.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import MetricRecord

from attack.every_line import PATIENT, Fault, Line, Tracer, following, under
from engines.flower.kit import DIMENSION, app, context
from engines.flower.test_client import CONFIG, request
from federation.node.makers import books, write_policy
from quietbit.federation import client as run_client
from quietbit.federation import part
from quietbit.federation.messages import ANSWERED, DECLINED
from quietbit.federation.parts import update
from quietbit.flower import PrivateClientApp
from quietbit.flower import client as flower_client
from quietbit.node import guard
from quietbit.node.guard import GRAIN
from quietbit.node.refusal import Reason, Refusal

pytestmark = pytest.mark.filterwarnings("ignore")
SHIFT = np.linspace(-0.2, 0.3, DIMENSION)
SECONDS = 0.75
AT_ONCE = 24  # answers that wait side by side
LOAD = 10.0  # seconds that a busy machine may be late
FILES = frozenset(
    str(module.__file__) for module in (flower_client, guard, run_client, part, update)
)
CONSTANTS = {
    f"{DECLINED}{Refusal(Reason.UNUSABLE).to_text()}",
    f"{ANSWERED}{Refusal(Reason.NOTED).to_text()}",
}
MAIN_THREAD = ("disarm", "rearm")  # where alone these lines run
NUMBERS = count()


def raises(*_: Any) -> None:
    raise ValueError(PATIENT)


def answered(
    folder: Path, call: Callable[..., Any], at: Line | None = None
) -> tuple[Any, float, Tracer, Path]:
    """Answer the first request of a new node: the reply or what was raised, when it left, and
    the lines.
    """
    home = folder / str(next(NUMBERS))
    home.mkdir()
    path = write_policy(home, epsilon=1e6, response_seconds=SECONDS, metrics=("train_loss",))
    place = context(11, config=CONFIG, quietbit_policy=path)
    asked = request()
    private = PrivateClientApp()
    private.train()(call)
    tracer = Tracer(FILES, at)
    reply = under(tracer, lambda: private(asked, place))
    return reply, time.time(), tracer, home


def check(reply: Any, left: float, tracer: Tracer, home: Path, size: int) -> str:
    """Return what kind of answer this is; fail where it is none that may leave."""
    if isinstance(reply, Fault):  # at the first line of the call alone, before its frame has begun
        assert tracer.at == next(iter(tracer.seen)), tracer.at
        assert books(home).releases == 0
        return "not begun"
    assert not isinstance(reply, BaseException), (tracer.at, reply)
    if reply.has_error():
        assert reply.error.reason in CONSTANTS, tracer.at
        return "declined"
    stamp = reply.metadata.created_at
    assert stamp / GRAIN == round(stamp / GRAIN)
    assert 0 <= left - stamp < LOAD, (tracer.at, left - stamp)
    assert set(reply.content) == {"quietbit", "quietbit-metrics"}
    assert len(reply.content["quietbit"]["release"]) == size
    assert reply.content["quietbit-metrics"] in (
        MetricRecord({"train_loss": value}) for value in (0.0, 0.25)
    )
    assert books(home).releases == 1
    return "released"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "step"),
    [
        pytest.param(app(SHIFT), 4, id="a quarter of the lines"),
        pytest.param(app(SHIFT), 1, id="trains", marks=pytest.mark.long),
        pytest.param(raises, 1, id="fails", marks=pytest.mark.long),
    ],
)
def test_an_exception_at_any_line_lets_out_a_release_at_its_moment_or_a_constant(
    tmp_path, monkeypatch, call, step
):
    monkeypatch.setattr(guard, "GRACE", 2.0)
    guard.quiet_handlers()  # once per process
    with following():
        answered(tmp_path, call)  # fills caches
        reply, left, first, home = answered(tmp_path, call)
        size = len(reply.content["quietbit"]["release"])
        assert check(reply, left, first, home, size) == "released"
        lines = list(first.seen)
        assert len(lines) > 200
        results = []
        others = [line for line in lines if line[1] not in MAIN_THREAD]
        # Once the zero release is in the outbox, a release leaves.
        late = others[[name for _, name, _ in others].index("_run_app") :]
        signals = [line for line in lines if line[1] in MAIN_THREAD][::step]
        others = others[::step]
        for line in signals:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            results.append(answered(tmp_path, call, line))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results += pool.map(lambda line: answered(tmp_path, call, line), others)
    # Which lines a thread passes depends, for a few, on when it wakes: nearly all were reached
    # again.
    assert sum(result[2].raised for result in results) > 0.95 * len(results)
    kinds = [check(*result, size) for result in results]
    assert kinds.count("not begun") == 1
    assert kinds.count("released") > 80 / step
    tried = zip(signals + others, kinds, strict=True)
    assert [line for line, kind in tried if kind == "declined" and line in late] == []
