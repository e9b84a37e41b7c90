import numpy as np
import pytest
from quietbit.simulate.cohort import PlainCollector, PrivateCollector, release_bodies

import quietbit
from quietbit.simulate.client_rng import secure_client_rng, seeded_client_rng
from quietbit.wire.header import HEADER_SIZE
from quietbit.wire.uplink import Uplink
from unit.simulate.makers import mechanisms, plan_for, small_problem

KINDS = sorted(mechanisms(39))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 4])
def test_a_round_is_bit_for_bit_that_of_the_uplink(kind, samples):
    problem = small_problem(samples)
    mechanism = mechanisms(problem.dimension)[kind]
    assert problem.dimension % 8 != 0
    plan, words = plan_for(mechanism), seeded_client_rng(5)
    collector = PrivateCollector(problem, plan, mechanism, words)
    clients = np.array([3, 0, 7, 11, 5], dtype=np.int64)
    rng = np.random.default_rng(1)
    parameters = rng.standard_normal(problem.dimension).astype(np.float32)
    rows = np.zeros((clients.size, -(-problem.dimension // 8) * 8), dtype=np.float32)
    problem.updates(parameters, clients, plan, rows[:, : problem.dimension])
    bodies = release_bodies(mechanism, rows, clients, 2, words, collector.kernel, collector.header)
    uplink = Uplink(mechanism, most=clients.size)
    sent = [
        uplink.send(row[: problem.dimension].copy(), words(2, client))
        for row, client in zip(rows, clients.tolist(), strict=True)
    ]
    assert [body.tobytes() for body in bodies] == [payload[HEADER_SIZE:] for payload in sent]
    assert {len(payload) for payload in sent} == {collector.bytes_per_client}
    np.testing.assert_array_equal(collector.mean(parameters, clients, 2), uplink.receive(sent))


@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "gaussian"])
def test_threads_change_nothing(kind):
    problem = small_problem(count=300)
    mechanism = mechanisms(problem.dimension)[kind]
    clients = np.arange(150, dtype=np.int64)
    parameters = np.zeros(problem.dimension, dtype=np.float32)
    means = [
        PrivateCollector(problem, plan_for(mechanism), mechanism, seeded_client_rng(1), threads).mean(
            parameters, clients, 0
        )
        for threads in (1, 2, 3)
    ]
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])


def test_words_belong_to_the_round_and_the_client():
    problem = small_problem()
    mechanism = mechanisms(problem.dimension)["imvu-1"]
    collector = PrivateCollector(problem, plan_for(mechanism), mechanism, seeded_client_rng(1))
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(20, dtype=np.int64)
    first = collector.mean(parameters, clients, 0)
    np.testing.assert_array_equal(first, collector.mean(parameters, clients[::-1].copy(), 0))
    assert not np.array_equal(first, collector.mean(parameters, clients, 1))


class Part:
    """The words of one row of a batch, as the draw of a single client."""

    def __init__(self, block, start):
        self.block, self.start = block, start

    def draw(self, count):
        return self

    def reader(self, start):
        return self.block.reader(self.start + start)

    def ties(self, indices):
        return self.block.ties(self.start + np.asarray(indices))


@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "imvu-l1"])
def test_a_batch_of_secure_words_is_one_release_per_row(kind):
    problem = small_problem()
    mechanism = mechanisms(problem.dimension)[kind]
    collector = PrivateCollector(problem, plan_for(mechanism), mechanism, secure_client_rng())
    clients = np.arange(9, dtype=np.int64)
    rows = np.zeros((9, 40), dtype=np.float32)
    problem.updates(np.zeros(39, dtype=np.float32), clients, collector.plan, rows[:, :39])
    block = collector.rng.rows(0, clients.tolist(), 39, 40)

    class Known:
        def rows(self, *given):
            return block

    bodies = release_bodies(mechanism, rows, clients, 0, Known(), collector.kernel, collector.header)
    uplink = Uplink(mechanism)
    for k, body in enumerate(bodies):
        assert body.tobytes() == uplink.send(rows[k, :39].copy(), Part(block, 40 * k))[HEADER_SIZE:]


def test_secure_words_never_repeat():
    problem = small_problem()
    mechanism = mechanisms(problem.dimension)["imvu-1"]
    collector = PrivateCollector(problem, plan_for(mechanism), mechanism, secure_client_rng())
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(40, dtype=np.int64)
    # 39 coordinates of 40 fair-ish bits each: equal by chance with probability below 2^-100.
    assert not np.array_equal(collector.mean(parameters, clients, 0), collector.mean(parameters, clients, 0))


def test_without_privacy_the_mean_is_the_mean():
    problem = small_problem()
    plan = plan_for(mechanisms(problem.dimension)["gaussian"])
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(50, dtype=np.int64)
    rows = np.zeros((50, problem.dimension), dtype=np.float32)
    problem.updates(parameters, clients, plan, rows)
    for threads in (1, 2):
        mean = PlainCollector(problem, plan, threads).mean(parameters, clients, 0)
        np.testing.assert_allclose(mean, rows.mean(axis=0, dtype=np.float64), atol=1e-12)


def test_a_ball_that_does_not_hold_the_updates_is_refused():
    problem = small_problem()
    mechanism = mechanisms(problem.dimension, clip=0.25)["gaussian"]
    plan = plan_for(mechanisms(problem.dimension, clip=0.5)["gaussian"])
    with pytest.raises(quietbit.InvalidParameter, match="radius"):
        PrivateCollector(problem, plan, mechanism, secure_client_rng())
    with pytest.raises(quietbit.InvalidParameter, match="norm"):
        PrivateCollector(
            problem, plan_for(mechanisms(problem.dimension, 0.25)["laplace"]), mechanism, secure_client_rng()
        )
