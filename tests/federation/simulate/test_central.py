"""Central DP-SGD and runs behind secure aggregation, side by side."""

import math
from fractions import Fraction

import numpy as np
import pytest

from federation.simulate.makers import chosen, small_problem
from quietbit.federation.messages import Reply
from quietbit.federation.part import Scope
from quietbit.federation.simulate.clients import (
    ROW,
    ClientSide,
    PlainRows,
    cut_to_grid,
    grid_of_sums,
)
from quietbit.federation.simulate.loop import play_round, simulate
from quietbit.kernel.rounded import grid_of
from quietbit.target import Adjacency, Trust


def run(**given):
    usual = {"lr": 0.5, "rounds": 6, "cohort": 60, "clip": 1.0, "rng": "seeded", "seed": 4}
    return simulate(small_problem(count=450), *chosen(**{**usual, **given}))


def test_central_noise_is_added_once_with_the_account_of_the_sum():
    found = run(mechanism="gaussian", trust="central", noise_multiplier=3.0)
    assert found.guarantee.trust is Trust.CENTRAL
    releases = int(found.account.counts.max())
    assert found.guarantee.epsilon_upper == (
        found.mechanism.privacy(Adjacency.ZERO_OUT) * releases
    ).epsilon(1e-5)
    assert found.bytes_per_client == 4 * 39
    quiet = run(
        mechanism="gaussian", trust="central", noise_multiplier=1e-6, rounds=1, momentum=0.0
    )
    plain = run(mechanism="none", rounds=1, momentum=0.0)
    np.testing.assert_allclose(quiet.parameters, plain.parameters, atol=1e-6)
    noisy = run(
        mechanism="gaussian", trust="central", noise_multiplier=300.0, rounds=1, momentum=0.0
    )
    # 39 coordinates of standard deviation 0.5 * 300 / 60 = 2.5: their norm is 15.6 to within a
    # factor of 1.6
    assert 10 < np.linalg.norm(noisy.parameters - plain.parameters) < 25


def test_central_noise_is_that_which_is_accounted():
    """A server's sum is on the public grid in every world: of floats 7e-5 of the mass was
    impossible in the other.
    """
    problem = small_problem(count=450)
    plan, training = chosen(
        lr=0.5,
        rounds=1,
        cohort=64,
        clip=1.0,
        mechanism="gaussian",
        trust="central",
        noise_multiplier=3.0,
        seed=4,
    )
    mechanism = plan.mechanism_for(problem.dimension)
    side = ClientSide(problem, training.local(plan), plan, mechanism)
    grid = grid_of(mechanism.unit)
    for number in range(1, 21):
        current = play_round(number, np.arange(64), mechanism, side, problem.initial(0))
        steps = current.mean() * 64 / grid  # 64 and the grid are powers of two
        np.testing.assert_array_equal(steps, np.rint(steps))
    floats = mechanism.unit * plan.clip * np.random.default_rng(1).normal(size=39) / grid
    assert (floats != np.rint(floats)).any()


def test_a_target_is_met_by_the_sum():
    found = run(mechanism="imvu", trust="secure-aggregation", epsilon=2.0, min_honest_clients=50)
    assert 1.99 < found.guarantee.epsilon_upper <= 2.0
    assert found.guarantee.trust is Trust.SECURE_AGGREGATION
    assert found.plan.secure_aggregation.honest_clients == 50
    assert (
        found.bytes_per_client == 24 + ((39 + 11) * 6 + 7) // 8
    )  # sums of 60 ones need 6 bits; 11 guard them
    releases = int(found.account.counts.max())
    alone = (found.mechanism.privacy(Adjacency.ZERO_OUT) * releases).epsilon(1e-5)
    assert alone > 2 * found.guarantee.epsilon_upper


def test_the_mean_is_that_of_the_same_codes_without_masks():
    given = {"mechanism": "imvu", "design_epsilon": 1.0, "beta": 2.0}
    np.testing.assert_array_equal(
        run(**given).parameters, run(**given, trust="secure-aggregation").parameters
    )


def test_a_client_moves_a_sum_of_a_million_by_its_own_update_alone():
    """Beside a power of two the sum with the client is rounded twice as coarsely as that without,
    and thousands of faint updates are rounded with it: floats moved it by 7e-7 clips more.
    """
    values = np.zeros(2**20, dtype=np.float32)
    values[0] = 0.75
    large = int((2**19 - 0.5) / 0.9375)
    values[1 : large + 1] = 0.9375
    values[large + 1] = 2**19 - 0.5 - 0.9375 * large
    values[large + 2 :: 45] = 2.0**-34 * (1 + 2.0**-20)
    collector = PlainRows(1, grid_of_sums(1.0, values.size))
    totals = []
    for first in (values[0], np.float32(0)):
        reply = Reply(0, 4, {ROW: np.append(first, values[1:])})
        rows = collector.read(Scope(0, 1, None), reply)
        forward, backward = (np.add.accumulate(order)[-1] for order in (rows, rows[::-1]))
        assert forward == backward  # added one by one, as a collector does
        totals.append(Fraction(float(forward)))
    assert totals[1] < 2**19 < totals[0]
    assert totals[0] - totals[1] == Fraction(0.75)
    exact = math.fsum(values.tolist())  # to half a unit in its last place
    assert 0 <= exact - totals[0] <= values.size * 2.0**-32


@pytest.mark.parametrize("count", [1, 3, 2**20, 10**9])
@pytest.mark.parametrize("clip", [1e-20, 0.7, 1.0, 1e20])
def test_cut_updates_are_no_longer_and_their_sums_are_exact(clip, count):
    grid = grid_of_sums(clip, count)
    rows = (clip * np.random.default_rng(1).uniform(-1, 1, (50, 7))).astype(np.float32)
    cut = cut_to_grid(rows, grid)
    assert (np.abs(cut) <= np.abs(rows.astype(np.float64))).all()
    assert (np.abs(cut - rows) < grid).all()
    steps = cut / grid
    assert (steps == np.trunc(steps)).all()
    assert clip * count / grid <= 2.0**53  # so that a sum of all clients is a double
