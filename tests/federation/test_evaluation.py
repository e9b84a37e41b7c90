"""Evaluations: intervals that cover, shares of whatever an app says, and a budget that is set
aside.
"""

import math

import numpy as np
import pytest
from scipy import stats

from core.statistical.kit import seed
from quietbit import Adjacency, InvalidParameter, Plan
from quietbit.federation.parts.evaluation import Evaluate, Evaluation
from quietbit.privacy.account import Account
from quietbit.target import Unit

CONFIG = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 4.0,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 2,
}
ASKS = CONFIG | {"quietbit.evaluate": {"epsilon": 0.5}}


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.86, 1.0])
@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 50), (0.5, 1000), (2.0, 200), (8.0, 30)])
def test_the_interval_covers_in_95_of_100_runs_and_can_fail_to(share, epsilon, count):
    """Exactly: the sum of binomial probabilities of all counts whose interval holds the share."""
    asked = Evaluation(Evaluate(epsilon), adjacency="replace-one")
    ones = np.arange(count + 1)
    chances = stats.binom.pmf(ones, count, asked.mechanism.frequency(share))
    means = [asked.mechanism.share(one / count) for one in ones]
    found = [asked.estimates([1 - mean, mean], count)[0] for mean in means]
    covered = np.array([one.low <= share <= one.high for one in found])
    assert math.fsum(chances[covered]) >= 0.95
    bare = np.array([one.low + 0.3 * (one.value - one.low) <= share <= one.value for one in found])
    assert (
        share in (0.0, 1.0) or math.fsum(chances[bare]) < 0.95
    )  # an interval cut short is noticed


@pytest.mark.parametrize(
    ("epsilon", "adjacency", "expected"),
    [(0.5, "replace-one", 0.040), (2.0, "replace-one", 0.013), (0.5, "zero-out", 0.0249)],
)
def test_ten_thousand_clients_have_these_margins_and_fewer_have_larger_ones(
    epsilon, adjacency, expected
):
    asked = Evaluation(Evaluate(epsilon), adjacency=adjacency)
    assert asked.margin(10_000) == pytest.approx(expected, abs=5e-4)
    assert asked.margin(100) > asked.margin(1000) > asked.margin(10_000)


def test_what_an_app_says_becomes_shares():
    loss = Evaluation(Evaluate(1.0, "loss", 4.0), adjacency="replace-one")
    for value, share in ((0.0, 0.0), (1.0, 0.25), (9.0, 1.0), (-3.0, 0.0)):
        assert loss.shares(value).tolist() == [1 - share, share]
    histogram = Evaluation(Evaluate(1.0, "confusion", bins=4), adjacency="replace-one")
    assert histogram.shares([2, 0, 1, 1]).tolist() == [0.5, 0.0, 0.25, 0.25]
    assert histogram.shares([0, 0, 0, 0]).tolist() == [0.0] * 4
    assert histogram.shares([1, -5, 0, 0]).tolist() == [1.0, 0.0, 0.0, 0.0]
    for bad in (math.nan, math.inf, [1.0, 2.0], "0.5 of 1", None):
        with pytest.raises((InvalidParameter, ValueError, TypeError)):
            loss.shares(bad)
    with pytest.raises(InvalidParameter):
        histogram.shares([1, 2, 3])


def test_estimates_are_in_the_units_of_the_metric():
    loss = Evaluation(Evaluate(2.0, "loss", 4.0), adjacency="replace-one")
    found = loss.estimates([0.75, 0.25], 5000)[0]
    assert found.value == 1.0
    assert found.low < 1.0 < found.high <= 4.0
    confusion = Evaluation(Evaluate(2.0, "confusion", bins=3), adjacency="replace-one")
    shares = [0.2, 0.3, 0.5]
    assert [one.value for one in confusion.estimates(shares, 5000)] == shares
    assert confusion.metric_of(shares) == shares
    assert loss.metric_of([0.75, 0.25]) == 1.0


def test_a_plan_leaves_updates_what_it_does_not_set_aside():
    plan = Plan.from_run_config(ASKS)
    left = plan.update_target
    assert left.epsilon < 3.0 <= math.nextafter(left.epsilon, 4.0)
    assert left.delta < 1e-5 * math.exp(-1.0) < left.delta * (1 + 1e-14)
    mechanism, plain = plan.mechanism_for(64), Plan.from_run_config(CONFIG).mechanism_for(64)
    assert Account(left, "adaptive").spend(plan.release(mechanism), 2).epsilon() <= left.epsilon
    assert mechanism.error().squared > plain.error().squared


def hockey_stick(first, second, epsilon):
    """Return the smallest delta at which the two laws are as close as this epsilon says, both
    ways round.
    """
    apart = [
        np.maximum(a - math.exp(epsilon) * b, 0.0).sum()
        for a, b in ((first, second), (second, first))
    ]
    return float(max(apart))


def test_setting_aside_holds_for_answers_between_updates_that_depend_on_them():
    """Two updates of random laws, and between them an answer whose truth depends on the first:
    laws multiplied out.
    """
    rng, aside, part, close = np.random.default_rng(seed(8)), 0.7, 0.6, 0
    for _ in range(300):
        first, second = rng.dirichlet(np.full(4, rng.choice([0.3, 2.0])), size=2)
        alone = hockey_stick(np.outer(first, first), np.outer(second, second), part)
        worlds = []
        for law, sign in ((first, 1), (second, -1)):
            said = 1 / (
                1 + np.exp(-sign * aside * np.array([1.0, -1.0, 0.3, 0.0]))
            )  # by the first update's output
            answers = np.stack([said, 1 - said])
            worlds.append((law[:, None, None] * answers.T[:, :, None] * law[None, None, :]).ravel())
        together = hockey_stick(*worlds, part + aside)
        assert together <= math.exp(aside) * alone * (1 + 1e-12)
        close += hockey_stick(*worlds, part) > alone * (1 + 1e-9)
    assert close > 100  # with nothing set aside it does not hold


def test_a_sample_is_priced_as_if_it_changed_the_answer():
    client = Evaluation(Evaluate(0.5), adjacency="zero-out")
    sample = Evaluation(Evaluate(0.5), adjacency="zero-out", unit=Unit.SAMPLE)
    assert sample.mechanism.truth < client.mechanism.truth
    assert sample.mechanism.epsilon_upper(Adjacency.REPLACE_ONE) <= 0.5
