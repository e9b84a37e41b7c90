"""Attacks on scouts: what the clip's path tells of one, and what a hostile server may ask of a
node.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from attrs import evolve

from federation.node.makers import DIMENSION, MECHANISM, books, declines, keeper, request
from federation.simulate.test_moving_clip import Long
from plans import flat_plan
from quietbit import Adjacency, Ball, InvalidParameter, Norm, Plan, QuietbitError
from quietbit.federation.client import OpenRequest, Subject
from quietbit.federation.intervals import clopper_pearson
from quietbit.federation.part import Arrival
from quietbit.federation.parts.adaptive_clip import Scouting
from quietbit.federation.simulate import Training
from quietbit.federation.simulate.clients import ClientSide
from quietbit.federation.simulate.loop import play_round
from quietbit.mechanism.batch import PoissonBatch
from quietbit.mechanism.projected import Projected
from quietbit.mechanism.response import RandomisedResponse
from quietbit.mechanism.scouts import Scout, Scouted
from quietbit.node.budget import account_of
from quietbit.node.refusal import AnsweredBefore, BudgetSpent
from quietbit.node.request import Step, SumPart, description_of, run_name
from quietbit.target import Target
from refusals import refuses

BOTH = ("imvu", "scout", "response")
MOVING = Scouted(MECHANISM, 2, 0.2)
SENDS = [number for number in range(1, 60) if MOVING.is_turn_of(run_name(7), number, 11)]
SCOUTS = sorted(set(range(1, 60)) - set(SENDS))
UPDATE = [np.linspace(-0.2, 0.3, DIMENSION)]
TRIALS = 2000
DOUBT = 1e-9


@pytest.mark.parametrize(
    "adjacency", ["replace-one", pytest.param("zero-out", marks=pytest.mark.long)]
)
def test_a_path_tells_a_scout_s_length_no_better_than_its_price(adjacency):
    """Two clients, of whom one scouts; who watches the next clip reads the answer, and guesses from
    it alone.

    The attacker's epsilon is log of the ratio of two frequencies, each at the end of an interval
    that holds with 1e-9: a sound answer is found to be above its price once in 5e8 runs, and one
    that is twice as dear as it says always.
    """
    lengths = {"long": 100.0, "short": 0.01, "zero": 0.0}
    plan = flat_plan(
        "vmvu",
        clip=1.0,
        adjacency=adjacency,
        epsilon=1.0,
        releases=1,
        cohort=2,
        quantile=0.5,
        every=2,
    )

    class Two(Long):
        sizes = np.ones(2, dtype=np.int64)
        length = 0.0

        def updates(self, parameters, clients, plan, out):
            out[:] = 0
            out[:, 0] = self.length

    problem = Two()
    mechanism = plan.mechanism_for(problem.dimension)
    side = ClientSide(problem, Training(0.1, 1).local(plan), plan, mechanism)

    def smaller(length):
        """How often the answer, which the server pools before it moves, is that the clip is too
        large.
        """
        problem.length = length
        paths = []
        for _ in range(TRIALS):
            assert plan.adaptive_clip is not None
            scouting = Scouting(plan, plan.adaptive_clip)
            start = np.zeros(problem.dimension, np.float32)
            current = play_round(1, np.arange(2), mechanism, side, start, (scouting,))
            scouting.close(current.closed())
            paths.append(scouting.moving._weighted / scouting.moving._precision)
        assert len(set(paths)) == 2
        return clopper_pearson(sum(share > 0.5 for share in paths), TRIALS, DOUBT)

    one, other = (
        smaller(lengths["short"]),
        smaller(lengths["long" if adjacency == "replace-one" else "zero"]),
    )
    shown = max(math.log(one[0] / other[1]), math.log((1 - other[1]) / (1 - one[0])))
    price = RandomisedResponse(2, mechanism.truth).epsilon_upper(plan.adjacency)
    assert mechanism.privacy(plan.adjacency).epsilon(plan.delta) <= 1.0
    assert shown <= price
    assert shown > 0.5 * price  # the attack works


def test_a_round_has_one_release_of_a_node_whatever_it_is_called(tmp_path):
    """An update and an answer of one round, in either order: the second is out of turn, and
    would be the second.
    """
    node = keeper(tmp_path, mechanisms=BOTH)
    for number, mechanism in ((SENDS[0], MOVING), (SCOUTS[-1], Scout(MOVING))):
        node.accept(request(number, mechanism)).release(UPDATE)
        other = Scout(MOVING) if mechanism is MOVING else MOVING
        with refuses("mechanism"):
            node.accept(request(number, other))
        declines(node, AnsweredBefore, request(number, mechanism))
        # Another number of clients per scout may make it this node's turn; the round is answered
        # all the same.
        for every in range(2, 40):
            again = evolve(MOVING, every=every)
            for one, clip in ((again, 1.0), (Scout(again), 1.0), (again, 0.5), (MECHANISM, 1.0)):
                declines(node, QuietbitError, request(number, one, clip=clip))
    assert books(tmp_path).releases == 2


def test_who_is_asked_out_of_turn_answers_nothing(tmp_path):
    node = keeper(tmp_path, mechanisms=BOTH)
    for number in SENDS[:5]:
        with pytest.raises(InvalidParameter, match="turn"):
            node.accept(request(number, Scout(MOVING)))
    for number in SCOUTS[:5]:
        with pytest.raises(InvalidParameter, match="turn"):
            node.accept(request(number, MOVING))
    assert books(tmp_path).releases == 0


def test_a_scout_is_asked_no_more_often_than_a_budget_allows(tmp_path):
    """A server that chooses rounds so that one node always scouts: every answer costs a release,
    and they end.
    """
    made = []
    for name, numbers, mechanism in (
        ("updates", SENDS, MOVING),
        ("answers", SCOUTS, Scout(MOVING)),
    ):
        (tmp_path / name).mkdir()
        node = keeper(tmp_path / name, mechanisms=BOTH, epsilon=4.0)
        for number in numbers:
            try:
                node.accept(request(number, mechanism)).release(UPDATE)
            except BudgetSpent:
                break
        made.append(books(tmp_path / name).releases)
    assert 0 < made[0] == made[1] < min(len(SENDS), len(SCOUTS))


def test_an_answer_is_no_evaluation_and_nothing_is_wrapped_around_it(tmp_path):
    node, scout = keeper(tmp_path, mechanisms=BOTH, evaluate=1.0), Scout(MOVING)
    wider = Ball(Norm.L2, 100)
    wraps = [
        lambda: Projected(scout, wider),
        lambda: PoissonBatch(scout, 0.5, 100),
        lambda: Scouted(scout, 20, 0.5),
    ]
    for wrap in wraps:
        with pytest.raises(QuietbitError):
            node.accept(request(SCOUTS[0], wrap()))
    with pytest.raises(InvalidParameter):  # nor is it wrapped around anything else
        Scout(MECHANISM)
    config = {"mechanism": "imvu", "clip": 1.0, "epsilon": 4.0, "adjacency": "replace-one"}
    config |= {"releases": 4, "evaluate.epsilon": 0.5}
    plan = Plan.from_run_config({f"quietbit.{key}": value for key, value in config.items()})
    asked = request(SCOUTS[0], scout, epsilon=0.5, delta=0.0)
    opened = OpenRequest(node, asked, Arrival({}, {}), Subject.EVALUATION.parts(plan))
    with refuses("mechanism of the evaluation", "Scout"):
        opened.check()
    # An answer asked for under the cap of evaluations is an update's release all the same, and too
    # dear for that.
    declines(node, BudgetSpent, request(SCOUTS[0], scout, epsilon=0.1, delta=0.0))


def test_beside_a_sum_only_answers_leave_unmasked(tmp_path):
    """An update asked for alone would be priced as in a sum, and seen; an answer in a sum would
    be no sum's price.
    """
    node = keeper(
        tmp_path,
        mechanisms=BOTH,
        trust=("secure-aggregation",),
        min_honest_clients=3,
        local_epsilon=50.0,
    )

    def part(step):
        return SumPart(step, 6, 1, 4, 3, "honest-but-curious")

    with refuses("step of the sum", Step.ALONE):
        node.accept(request(SENDS[0], MOVING, sum=part(Step.ALONE)))
    with refuses("step of the sum", Step.VECTOR):
        node.accept(request(SCOUTS[0], Scout(MOVING), sum=part(Step.VECTOR)))
    with refuses("step of the sum", Step.ALONE):
        node.step(request(SCOUTS[0], Scout(MOVING), sum=part(Step.ALONE)))
    with pytest.raises(QuietbitError, match="trust"):
        node.accept(request(SCOUTS[0], Scout(MOVING)))
    assert books(tmp_path).releases == 0
    node.accept(request(SCOUTS[0], Scout(MOVING), sum=part(Step.ALONE))).release(UPDATE)
    found = books(tmp_path)
    ((_, honest, _),) = found.counts()
    assert (found.releases, honest) == (1, 3)
    spent = account_of(
        found, Target(100.0, 1e-5, "replace-one", trust="secure-aggregation"), 3
    ).epsilon()
    assert spent >= RandomisedResponse(2, 0.2).epsilon_upper(Adjacency.REPLACE_ONE) * 0.5
    assert account_of(found, Target(100.0, 1e-5, "replace-one"), 0).epsilon() >= spent


def test_an_answer_is_not_hidden_behind_the_bit_of_an_earlier_version(tmp_path):
    """Earlier versions sent a bit beside every update: a description that has one is refused by
    its name.
    """
    held = keeper(tmp_path, mechanisms=BOTH)
    fine = description_of(Scout(Scouted(MECHANISM, 2, 1 - 1e-12)))
    hidden = fine.replace('"every":2', '"bit_epsilon":1e-9,"every":2')
    assert hidden != fine
    with pytest.raises(InvalidParameter, match="bit_epsilon"):
        held.accept(replace(request(SCOUTS[0], Scout(MOVING)), mechanism=hidden))
    assert books(tmp_path).releases == 0
