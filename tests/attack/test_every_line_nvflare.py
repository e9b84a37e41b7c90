"""Every exit of NVFlare's client: an exception at each of its lines, one task per line, and what
leaves then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.fl_constant import ReturnCode
from nvflare.fuel.utils import fobs

from attack.every_line import PATIENT, Fault, Line, Tracer, following, under
from engines.nvflare.kit import CONFIG, Server, Site, content, public_names, trained
from federation.node.makers import books, write_policy
from quietbit.federation import client as run_client
from quietbit.federation import part
from quietbit.federation.parts import update
from quietbit.node import guard
from quietbit.node.guard import GRAIN
from quietbit.node.refusal import Reason, Refusal
from quietbit.nvflare import client, patches, processing, task

pytestmark = pytest.mark.filterwarnings("ignore")
SECONDS = 0.75
AT_ONCE = 24  # tasks that wait side by side
LOAD = 10.0  # seconds that a busy machine may be late
MAIN_THREAD = ("disarm", "rearm")  # where alone these lines run
FILES = frozenset(
    str(module.__file__)
    for module in (client, patches, processing, task, guard, run_client, part, update)
)
FIRST = {
    "process_task",
    "_aux",
    "_send_task_result",
}  # of each, the line before its frame has begun, or its last
NUMBERS = count()


def raises(*_: Any) -> None:
    raise ValueError(PATIENT)


def answered(
    folder: Path, app: Callable[..., Any], at: Line | None = None
) -> tuple[Any, Site, Tracer, Path]:
    """Do the first task of a new site under a tracer: the result, or what was raised."""
    home = folder / str(next(NUMBERS))
    home.mkdir()
    rules = {"epsilon": 1e6, "response_seconds": SECONDS, "metrics": ("loss",)}
    properties = {"quietbit.policy": write_policy(home, **rules)}
    site = Site(app, simulated=False, properties=properties)
    asked = Server(CONFIG).asks()
    site.begun = time.time()
    tracer = Tracer(FILES, at)
    return under(tracer, lambda: site.does(asked)), site, tracer, home


def check(reply: Any, site: Site, tracer: Tracer, home: Path, size: int) -> str:
    """Return what kind of result this is; fail where it is none that may leave."""
    if isinstance(reply, Fault):
        return "raised"
    assert not isinstance(reply, BaseException), (tracer.at, reply)
    assert public_names(reply) == set()
    assert PATIENT.encode() not in fobs.dumps(reply)
    if reply.get_return_code() != ReturnCode.OK:
        assert content(reply) == {}
        return "declined"
    assert set(content(reply)) == {"quietbit"}, (tracer.at, content(reply))
    record = content(reply)["quietbit"]
    if "declined" in record:
        constants = [Refusal(reason).to_text() for reason in (Reason.UNUSABLE, Reason.NOTED)]
        assert record["declined"] in constants
        return "declined"
    assert set(record) == {"release", "metrics"}
    assert len(record["release"]) == size
    assert record["metrics"] == {"loss": 0.0}
    (check,) = [sent["moment"] for sent in site.engine.sent if sent["topic"] == "__task_check__"]
    assert SECONDS <= check - site.begun < SECONDS + GRAIN + LOAD, tracer.at
    assert books(home).releases == 1
    return "released"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "step"),
    [
        pytest.param(trained(), 4, id="a quarter of the lines"),
        pytest.param(trained(), 1, id="trains", marks=pytest.mark.long),
        pytest.param(raises, 1, id="fails", marks=pytest.mark.long),
    ],
)
def test_an_exception_at_any_line_lets_out_a_release_at_its_moment_or_a_constant(
    tmp_path, monkeypatch, app, step
):
    monkeypatch.setattr(guard, "GRACE", 2.0)
    monkeypatch.setattr("quietbit.nvflare.client.is_log_streaming_allowed", lambda fl_ctx: False)
    with following():
        answered(tmp_path, app)  # fills caches
        reply, site, first, home = answered(tmp_path, app)
        size = len(content(reply)["quietbit"]["release"])
        assert check(reply, site, first, home, size) == "released"
        lines = [line for line in first.seen if line[1] not in MAIN_THREAD]
        # Once the app is about to be called, a release leaves.
        late = lines[[name for _, name, _ in lines].index("execute_task") :]
        lines = lines[::step]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(lambda line: answered(tmp_path, app, line), lines))
        # CPython's parser, which formats tracebacks, fails now and then where a tracer raises in
        # another thread.
        for place, result in enumerate(results):
            if isinstance(result[0], SystemError) and "AST constructor" in str(result[0]):
                results[place] = answered(tmp_path, app, lines[place])
    # Which lines a thread passes depends, for a few, on when it wakes: nearly all were reached
    # again.
    assert sum(result[2].raised for result in results) > 0.95 * len(results)
    kinds = [check(*result, size) for result in results]
    raised = [line for line, kind in zip(lines, kinds, strict=True) if kind == "raised"]
    assert {name for _, name, _ in raised} <= FIRST, raised
    assert kinds.count("released") > 100 / step
    tried = zip(lines, kinds, strict=True)
    assert [line for line, kind in tried if kind == "declined" and line in late] == []
