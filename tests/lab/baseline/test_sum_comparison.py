from __future__ import annotations

from quietbit.mechanism.ball import Ball, Norm
from quietbit.target import Target, Trust
from quietbit_lab.baseline.sum_rows import compare_sums
from refusals import refuses

BALL = Ball(Norm.L2, 5000)
TARGET = Target(1.0, 1e-5, "zero-out", releases=10)


def test_one_bit_is_next_to_the_ideal_and_far_from_local() -> None:
    one, ideal, skellam, seen, local = compare_sums(ball=BALL, clients=1000, target=TARGET)
    assert (one.bits, ideal.bits, skellam.bits, seen.bits, local.bits) == (10, 32, 16, 1, 1)
    assert all(0.999 <= row.epsilon_upper <= 1.0 for row in (one, ideal, skellam, local))
    assert (
        ideal.squared_error < one.squared_error < 1.27 * ideal.squared_error
    )  # Rényi against exact
    assert ideal.squared_error < skellam.squared_error
    assert 900 < local.squared_error / ideal.squared_error < 1100  # one n
    assert local.trust is seen.trust is Trust.LOCAL
    assert seen.squared_error == one.squared_error
    assert seen.epsilon_upper > 30  # what the same codes reveal to a server that sees them


def test_distributed_noise_counts_on_the_honest_too() -> None:
    whole = compare_sums(ball=BALL, clients=200, target=TARGET)
    half = compare_sums(ball=BALL, clients=200, min_honest_clients=100, target=TARGET)
    for name in ("one bit, secure sum", "ideal distributed Gaussian", "Skellam, secure sum"):
        a, b = (next(row for row in rows if row.name == name) for rows in (whole, half))
        assert 1.8 < b.squared_error / a.squared_error < 2.4
        assert a.bits == b.bits


def test_only_an_l2_ball_is_compared() -> None:
    with refuses("norm of the ball", "l1"):
        compare_sums(ball=Ball(Norm.L1, 4), clients=10, target=TARGET)
