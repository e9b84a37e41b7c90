"""A server that reads the clock: whether training failed, and how long it took, must not show in an
answer's time.

Before there was an answer time, an app that raised on a NaN loss answered in 0.16 s instead of 0.77
s, and the stamps of replies gave 63 of 64 pixels of a training image away.
`benchmarks/answer_time.py` measures 1,000 releases.
"""

import math
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from engines.flower.kit import DIMENSION, app, context, gated
from engines.flower.test_client import CONFIG, request
from federation.node.makers import books, keeper, write_policy
from federation.node.makers import request as node_request
from quietbit import Ball, Gaussian, InvalidParameter
from quietbit.federation.client import OpenRequest, Subject
from quietbit.federation.part import Arrival
from quietbit.federation.plan import Plan
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.node.guard import GRAIN, NUMBERS, AnswerTime

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
SHIFT = np.linspace(-0.2, 0.3, DIMENSION)


def raises(*_):
    raise FloatingPointError("the loss of patient Ada is NaN")


def slowly(seconds, then=None):
    def call(message, own):
        time.sleep(seconds)
        return (then or app(SHIFT))(message, own)

    return call


def spins(*_):
    ends = time.monotonic() + 3.0
    while time.monotonic() < ends:
        math.factorial(200)


APPS = {
    "fails at once": raises,
    "quick": app(SHIFT),
    "takes its time": slowly(0.5),
    "fails late": slowly(0.5, raises),
    "overruns": slowly(3.0),
    "does not let go": spins,
}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("train", APPS),
        ("evaluate", ("fails at once", "overruns")),
        pytest.param("evaluate", APPS, marks=pytest.mark.long),
    ],
)
def test_an_answer_leaves_at_its_moment_whatever_the_app_does(tmp_path, kind, names):
    """The stamp is a multiple of the grain, at most one grain after the answer time; the reply
    leaves then.
    """
    path = write_policy(tmp_path, epsilon=1e4, response_seconds=0.9, metrics=("train_loss",))
    place = context(11, config=CONFIG | {"quietbit.epsilon": 1e3}, quietbit_policy=path)
    seen = {}
    for number, name in enumerate(names, 1):
        asked = request(number, kind=kind)
        begun = time.time()
        reply = gated()(asked, place, APPS[name])
        left, stamp = time.time(), reply.metadata.created_at
        assert stamp / GRAIN == round(stamp / GRAIN)
        assert reply.metadata.ttl == asked.metadata.ttl - (stamp - asked.metadata.created_at)
        assert reply.has_content()
        seen[name] = stamp - begun, left - stamp
    for waited, late in seen.values():
        assert 1.0 <= waited < 1.0 + GRAIN + 0.1 or waited > 2.0  # 0.9 is rounded up to the grain
        assert 0 <= late < 0.1
    assert books(tmp_path).releases == (len(names) if kind == "train" else 0)


def test_an_app_that_is_late_releases_zero(tmp_path):
    path = write_policy(tmp_path, epsilon=1e4, response_seconds=0.5, seed=7)
    late = gated()(request(), context(11, quietbit_policy=path), slowly(2.0))
    (tmp_path / "again").mkdir()
    path = write_policy(tmp_path / "again", epsilon=1e4, response_seconds=0.5, seed=7)
    zero = gated()(request(), context(11, quietbit_policy=path), app(np.zeros(DIMENSION)))
    assert late.content == zero.content


@pytest.mark.parametrize(("numbers", "found"), [(0, 7), (int(0.75 * NUMBERS), None)])
def test_an_app_ends_early_enough_to_have_its_steps_taken_for_it(numbers, found):
    moment = AnswerTime(2.0, numbers)

    def slow():
        time.sleep(1.1)
        return 7

    begun = time.monotonic()
    assert moment.run(slow) == found
    assert found or 0.4 < time.monotonic() - begun < 1.05


def test_a_request_for_local_steps_reserves_the_time_that_their_noise_takes(tmp_path):
    step = PoissonBatch(Gaussian(Ball("l2", DIMENSION), 0.02), 10, 0.5)
    rules = {"unit": "sample", "data_set": "ward 7", "response_seconds": 40.0}
    held = keeper(tmp_path, epsilon=1e9, **rules)
    plan = Plan.from_run_config(CONFIG)
    left = []
    for number, mechanism in enumerate(
        (LocalSteps(step, 1, 0.1), LocalSteps(step, 10_000, 0.1)), 1
    ):
        asked = node_request(number, mechanism, unit="sample")
        arrival = Arrival({}, dict(request().content.array_records["arrays"]))
        opened = OpenRequest(held, asked, arrival, Subject.UPDATE.parts(plan))
        opened.check()
        turn = opened.accept()
        left.append(turn.moment._leave - turn.moment._deadline)
    assert left[0] == pytest.approx(10.0)
    assert left[1] == pytest.approx(10.0 + 9_999 * DIMENSION / NUMBERS)


def test_without_an_answer_time_nothing_waits():
    moment = AnswerTime(0.0)
    assert moment.run(lambda: 7) == 7
    assert moment.run(raises) is None
    assert moment.left() == 0
    assert abs(moment.stamp - time.time()) < 0.1


def test_noise_that_cannot_be_drawn_in_time_is_refused_from_the_request_alone():
    AnswerTime(60.0, numbers=int(30 * NUMBERS))
    with pytest.raises(InvalidParameter, match="local steps"):
        AnswerTime(60.0, numbers=int(36 * NUMBERS))
    AnswerTime(0.0, numbers=10**12)  # a simulation waits for nothing
