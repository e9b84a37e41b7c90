"""The laboratory's shortcut against the path that it shortens: `Uplink.send`, bit for bit."""

import numpy as np
import pytest

import quietbit
from quietbit import Plan
from quietbit.kernel.rng import secure_rng, seeded_rng
from quietbit.simulate.client_rng import seeded_client_rng
from quietbit.simulate.collect import PlainCollector, UplinkCollector, make_collector
from quietbit.simulate.loop import simulate
from quietbit.wire.payload import HEADER_SIZE
from quietbit.wire.uplink import Uplink
from quietbit_lab.experiment.quick import QuickCollector, RowBlock, quick_collector, release_bodies, row_bits, train
from unit.simulate.makers import chosen, mechanisms, small_problem, steps_for

KINDS = sorted(mechanisms(39))
CLIENTS = np.array([3, 0, 7, 11, 5], dtype=np.int64)


def collector_of(kind, problem, rng="seeded", threads=1, cohort=5, make=QuickCollector):
    mechanism = mechanisms(problem.dimension)[kind]
    name = kind.split("-")[0]
    given = {"design_epsilon": 1.0} if name in ("imvu", "mvu") else {"noise_multiplier": 1.0}
    ball = mechanism.domain
    plan = Plan(name, clip=ball.radius, norm=ball.norm, adjacency="zero-out", cohort=cohort, rng=rng, seed=5, **given)
    return make(problem, steps_for(mechanism), plan, mechanism, threads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("stretch", [1.0, 3.0], ids=["clipped", "too long"])
def test_a_round_is_bit_for_bit_that_of_the_uplink(kind, samples, stretch):
    inner = small_problem(samples)

    class Stretched:
        """Every second row is longer than the clip by the factor."""

        def __getattr__(self, name):
            return getattr(inner, name)

        def updates(self, parameters, clients, plan, out):
            inner.updates(parameters, clients, plan, out)
            out[1::2] *= np.float32(stretch)

    problem = Stretched()
    assert problem.dimension % 8 != 0
    quick = collector_of(kind, problem)
    parameters = np.random.default_rng(1).standard_normal(problem.dimension).astype(np.float32)
    rows = np.zeros((CLIENTS.size, problem.dimension), dtype=np.float32)
    problem.updates(parameters, CLIENTS, quick.steps, rows)
    uplink, rng = Uplink(quick.mechanism, max_payloads=CLIENTS.size), seeded_client_rng(5)
    sent = [uplink.send(row, rng(2, client)) for row, client in zip(rows, CLIENTS.tolist(), strict=True)]
    assert {len(payload) for payload in sent} == {quick.bytes_per_client}
    expected = uplink.receive(sent)
    np.testing.assert_array_equal(quick.mean(parameters, CLIENTS, 2), expected)
    real = collector_of(kind, problem, make=make_collector)
    assert isinstance(real, UplinkCollector)
    np.testing.assert_array_equal(real.mean(parameters, CLIENTS, 2), expected)
    if kind.startswith("imvu"):
        wide = np.zeros((CLIENTS.size, 40), dtype=np.float32)
        wide[:, :39] = rows
        draw = lambda: row_bits(quick.plan, rng, 2, CLIENTS.tolist(), 39, 40)  # noqa: E731
        bodies = release_bodies(quick.mechanism, wide, CLIENTS, 2, rng, draw, quick.kernel)
        assert [body.tobytes() for body in bodies] == [payload[HEADER_SIZE:] for payload in sent]


@pytest.mark.parametrize("make", [QuickCollector, make_collector])
@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "gaussian"])
def test_threads_change_nothing(kind, make):
    problem = small_problem(count=300)
    clients, parameters = np.arange(150, dtype=np.int64), np.zeros(problem.dimension, dtype=np.float32)
    means = [
        collector_of(kind, problem, threads=threads, cohort=150, make=make).mean(parameters, clients, 0)
        for threads in (1, 2, 3)
    ]
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])


def test_random_bits_belong_to_the_round_and_the_client():
    problem = small_problem()
    collector = collector_of("imvu-1", problem, cohort=20)
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(20, dtype=np.int64)
    first = collector.mean(parameters, clients, 0)
    np.testing.assert_array_equal(first, collector.mean(parameters, clients[::-1].copy(), 0))
    assert not np.array_equal(first, collector.mean(parameters, clients, 1))


class Part:
    """The bits of one row of a batch, as the draw of a single client."""

    def __init__(self, block, start):
        self.block, self.start = block, start

    def draw(self, count):
        return self

    def reader(self, start):
        return self.block.reader(self.start + start)

    def ties(self, indices):
        return self.block.ties(self.start + np.asarray(indices))


@pytest.mark.parametrize("kind", ["imvu-1", "imvu-3", "imvu-l1"])
def test_a_batch_of_secure_bits_is_one_release_per_row(kind):
    problem = small_problem()
    collector = collector_of(kind, problem, rng="secure")
    clients = np.arange(9, dtype=np.int64)
    rows = np.zeros((9, 40), dtype=np.float32)
    problem.updates(np.zeros(39, dtype=np.float32), clients, collector.steps, rows[:, :39])
    block = row_bits(collector.plan, collector.rng, 0, clients.tolist(), 39, 40)
    bodies = release_bodies(collector.mechanism, rows, clients, 0, collector.rng, lambda: block, collector.kernel)
    uplink = Uplink(collector.mechanism)
    for k, body in enumerate(bodies):
        assert body.tobytes() == uplink.send(rows[k, :39].copy(), Part(block, 40 * k))[HEADER_SIZE:]


def test_secure_bits_never_repeat():
    problem = small_problem()
    collector = collector_of("imvu-1", problem, rng="secure", cohort=40)
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(40, dtype=np.int64)
    # 39 coordinates of 40 fair-ish bits each: equal by chance with probability below 2^-100.
    assert not np.array_equal(collector.mean(parameters, clients, 0), collector.mean(parameters, clients, 0))


def test_without_privacy_the_mean_is_the_mean():
    problem = small_problem()
    steps = steps_for(mechanisms(problem.dimension)["gaussian"])
    parameters, clients = np.zeros(problem.dimension, dtype=np.float32), np.arange(50, dtype=np.int64)
    rows = np.zeros((50, problem.dimension), dtype=np.float32)
    problem.updates(parameters, clients, steps, rows)
    for threads in (1, 2):
        mean = PlainCollector(problem, steps, threads).mean(parameters, clients, 0)
        np.testing.assert_allclose(mean, rows.mean(axis=0, dtype=np.float64), atol=1e-12)


@pytest.mark.parametrize("make", [QuickCollector, make_collector])
def test_a_ball_that_does_not_hold_the_updates_is_refused(make):
    problem, plan = small_problem(), Plan("gaussian", clip=0.5, adjacency="zero-out", noise_multiplier=1.0)
    small, wide = (mechanisms(problem.dimension, clip=clip)["gaussian"] for clip in (0.25, 0.5))
    with pytest.raises(quietbit.InvalidParameter, match="radius"):
        make(problem, steps_for(wide), plan, small, 1)
    with pytest.raises(quietbit.InvalidParameter, match="norm"):
        make(problem, steps_for(mechanisms(problem.dimension, 0.25)["laplace"]), plan, small, 1)
    with pytest.raises(quietbit.InvalidParameter, match="dimension"):
        make(problem, steps_for(wide), plan, mechanisms(7)["gaussian"], 1)


@pytest.mark.parametrize(
    "given",
    [
        {"mechanism": "imvu", "design_epsilon": 2.0},
        {"mechanism": "imvu", "design_epsilon": 2.0, "trust": "secure-aggregation"},
        {"mechanism": "gaussian", "noise_multiplier": 1.0, "trust": "central"},
        {"mechanism": "none"},
    ],
)
def test_a_run_by_the_shortcut_is_the_run(given):
    setup = chosen(lr=0.5, rounds=5, cohort=20, clip=1.0, rng="seeded", seed=4, **given)
    long, short = simulate(small_problem(), *setup), train(small_problem(), *setup)
    np.testing.assert_array_equal(long.parameters, short.parameters)
    assert long.bytes_per_client == short.bytes_per_client
    made = quick_collector(small_problem(), setup[1].local(setup[0]), setup[0], short.mechanism, 1)
    assert isinstance(made, QuickCollector) == (given.get("trust") != "central" and given["mechanism"] != "none")


USED, WIDTH, ROWS = 13, 16, 4


@pytest.fixture(params=["seeded", "secure"])
def blocks(request):
    make = seeded_rng(3) if request.param == "seeded" else secure_rng()
    return [make.draw(USED) for _ in range(ROWS)]


def test_rows_carry_their_own_bits(blocks):
    rows = RowBlock(blocks, USED, WIDTH)
    table = rows.primary(0, ROWS * WIDTH).reshape(ROWS, WIDTH)
    for row, block in zip(table, blocks, strict=True):
        np.testing.assert_array_equal(row[:USED], block.primary(0, USED))
        assert not row[USED:].any()


def test_reading_may_start_and_stop_anywhere(blocks):
    rows = RowBlock(blocks, USED, WIDTH)
    whole = rows.primary(0, ROWS * WIDTH)
    for start in range(0, ROWS * WIDTH, 5):
        reader = rows.reader(start)
        pieces, at = [], start
        for count in (1, 3, 7, 20):
            out = np.empty(min(count, ROWS * WIDTH - at), dtype="<u2")
            reader.fill(out)
            pieces.append(out)
            at += out.size
        np.testing.assert_array_equal(np.concatenate(pieces), whole[start:at])


def test_ties_come_from_the_row(blocks):
    indices = np.array([0, 5, 14, 17, 40, 63], dtype=np.int64)
    found = RowBlock(blocks, USED, WIDTH).ties(indices)
    wanted = [0 if i % WIDTH >= USED else int(blocks[i // WIDTH].ties(np.array([i % WIDTH]))[0]) for i in indices]
    assert found.tolist() == wanted
