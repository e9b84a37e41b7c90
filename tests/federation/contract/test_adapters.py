"""What every adapter of a run does alike: Flower, NVFlare and, where it can, the simulator."""

import math
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest

from federation.contract.kit import (
    ADAPTERS,
    ENGINES,
    FlowerFederation,
    LocalFederation,
    Work,
    still,
    walk,
)
from federation.node.makers import write_policy
from quietbit import MovingClip
from quietbit.errors import QuietbitError
from quietbit.federation.batch import private_batch
from quietbit.mechanism.scouts import Scout
from quietbit.node.budget import account_of
from quietbit.node.refusal import Reason
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 20.0,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 4,
}
# Noise of 1e-4 clips per number: what is left of an update can be read.
EXACT = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 1e-4,
    "quietbit.epsilon": 1e11,
    "quietbit.adjacency": "replace-one",
}
REPLAY = {
    "quietbit.mechanism": "vmvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 100.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.mechanism.design-epsilon": 2.0,
    "quietbit.mechanism.coordinates": 64,
    "quietbit.replay": True,
}


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
def engine(request, tmp_path):
    """Make a federation of an engine, in a folder of its own."""
    return lambda *args, **given: request.param(*args, folder=tmp_path, **given)


@pytest.fixture(params=ADAPTERS, ids=lambda kind: kind.name)
def adapter(request, tmp_path):
    """Make a federation of any adapter."""
    return lambda *args, **given: request.param(*args, folder=tmp_path, **given)


def owner(folder, name, **rules):
    """Return the path of a policy with a ledger of its own."""
    (folder / name).mkdir()
    return write_policy(folder / name, **{"epsilon": 1e12, "seed": 7} | rules)


def last(federation):
    entry = federation.report()["rounds"][-1]
    return entry


def test_a_round_steps_by_the_mean_of_the_payloads(adapter):
    """Payloads are those of `Uplink.send` to the last bit: clipped, of this round and this node."""
    federation = adapter(CONFIG)
    earlier = b""
    for number in (1, 2):
        before = federation.model.astype(np.float64)
        federation.play()
        mechanism = federation.plan.mechanism_for(before.size)
        expected = []
        for node in range(3):
            update = walk(node, before).update
            if isinstance(federation, LocalFederation):
                update = update.astype(np.float32)
            else:
                update = before - (before - update)
            expected.append(federation.expected(node, update, mechanism, number))
        if not isinstance(federation, LocalFederation):
            assert [federation.payload(node) for node in range(3)] == expected
            assert earlier != expected[0]  # the update is the same, and the random words are not
            earlier = expected[0]
        mean = Uplink(mechanism).receive(expected)
        assert federation.model == pytest.approx(before - mean, abs=1e-5)


def test_every_release_is_clipped(adapter):
    """The mean of one update that is a thousand clips long is one clip long."""
    federation = adapter(EXACT, lambda node, model: Work(np.full(model.size, 1e3)), 1)
    before = federation.model
    federation.play()
    # Noise of 2e-4 in each of 42 places: below 0.01 in length, at a false alarm below 1e-9.
    assert np.linalg.norm(before - federation.model) == pytest.approx(1.0, abs=0.01)


def crash(node, model):
    if node == 1:
        raise ValueError("label 7 of patient Ada")
    return walk(node, model)


def test_nodes_that_decline_fail_crash_or_send_something_else_are_counted(engine, tmp_path):
    """Node 1 crashes and releases zero, 2 declines, the reply of 3 is lost, 4's is damaged."""
    strict = owner(tmp_path, "strict", mechanisms=("gaussian",))
    federation = engine(CONFIG, crash, 5, owners={2: strict})
    federation.play(lost={3}, alter=lambda node, data: data[:-1] if node == 4 else data)
    entry = last(federation)
    counts = [entry[name] for name in ("asked", "answered", "declined", "failed", "refused")]
    assert counts == [5, 2, 1, 1, 1]
    assert entry["crashed"] == 1
    assert federation.reasons[2] is Reason.NOT_ALLOWED
    assert federation.ledger(2).releases == 0
    # What may have been released counts, whether or not it arrived; what was declined does not.
    releases = {node["node"][-1]: node["releases"] for node in federation.report()["nodes"]}
    assert sorted(releases.values()) == [0, 1, 1, 1, 1]
    answered = [node["answered"] for node in federation.report()["nodes"]]
    assert answered == [1, 1, 0, 0, 0]
    mechanism = federation.plan.mechanism_for(federation.dimension)
    zeros = np.zeros(federation.dimension)
    assert federation.payload(1) == federation.expected(1, zeros, mechanism, 1)


def test_the_budget_of_the_run_ends_it(engine):
    federation = engine(CONFIG | {"quietbit.releases": 2}, nodes=1)
    for _ in range(3):
        federation.play()
    assert federation.reasons[0] is Reason.BUDGET_SPENT
    assert not federation.noted[0]
    assert federation.ledger(0).releases == 2
    assert last(federation)["declined"] == 1


def test_the_budget_of_the_owner_ends_it(engine, tmp_path):
    careful = owner(tmp_path, "careful", releases=1)
    federation = engine(CONFIG, nodes=2, owners={0: careful})
    federation.play()
    federation.play()
    assert federation.reasons == {0: Reason.BUDGET_SPENT, 1: None}
    assert [federation.ledger(node).releases for node in range(2)] == [1, 2]


def test_a_node_answers_a_round_once(engine):
    federation = engine(CONFIG, nodes=2)
    federation.play(twice={1})
    federation.seen.clear()
    assert federation.ask_again(0) is Reason.ANSWERED_BEFORE
    assert federation.noted[0]  # the server goes on counting it: the first reply may be lost
    assert not federation.seen  # and the app is not called
    assert federation.ledger(0).releases == 1
    entry = last(federation)
    assert (entry["answered"], entry["refused"]) == (2, 1)


@pytest.mark.parametrize("field", ["run", "round", "node"])
def test_a_release_of_another_run_round_or_node_is_refused(engine, field):
    def alter(node, data):
        if node != 1:
            return data
        frame = Framed.from_bytes(data)
        values = {"run": frame.run, "round": frame.round, "node": frame.node}
        values[field] += 1
        return Framed(**values, payload=frame.payload).to_bytes()

    federation = engine(CONFIG, nodes=2)
    federation.play(alter=alter)
    entry = last(federation)
    assert (entry["answered"], entry["refused"]) == (1, 1)


@pytest.mark.parametrize(
    ("field", "value"), [("dimension", 41), ("round", 0), ("version", 1), ("mechanism", "{}")]
)
def test_a_request_that_does_not_fit_is_declined_and_not_noted(engine, field, value):
    federation = engine(CONFIG, nodes=2)
    federation.play(change=lambda node, record: record.update({field: value} if node else {}))
    assert federation.reasons == {0: None, 1: Reason.INVALID}
    assert federation.ledger(1).releases == 0
    assert 1 not in federation.seen


def test_the_report_and_the_ledgers_agree_on_epsilon(engine):
    federation = engine(CONFIG, nodes=2)
    federation.play(lost={1})
    federation.play()
    report = federation.report()
    assert [node["releases"] for node in report["nodes"]] == [2, 2]
    for place, node in enumerate(report["nodes"]):
        noted = account_of(federation.ledger(place), federation.plan.target, 0).epsilon()
        assert node["epsilon_upper"] == noted
    assert report["guarantee"]["epsilon_upper"] == report["nodes"][0]["epsilon_upper"]
    assert report["guarantee"]["adjacency"] == "replace-one"


def test_the_simulator_and_the_engines_agree_on_epsilon(tmp_path):
    """Four rounds of a plan cost the same; nodes account adaptively, which costs a little more."""
    costs = []
    for kind in ADAPTERS:
        federation = kind(CONFIG, still, 2, folder=tmp_path)
        for _ in range(4):
            federation.play()
        costs.append(federation.report()["guarantee"]["epsilon_upper"])
    assert costs[0] == costs[1]
    assert costs[2] == pytest.approx(costs[0], rel=1e-4)


def test_replayed_nodes_have_the_model_of_the_server(engine):
    federation = engine(REPLAY, rows=700)
    for _ in range(3):
        before = federation.model
        federation.seen.clear()
        federation.play()
        assert [model.tobytes() for model in federation.seen.values()] == [before.tobytes()] * 3
        assert federation.model.tobytes() != before.tobytes()
    rounds = federation.report()["rounds"]
    assert [entry["answered"] for entry in rounds] == [3, 3, 3]
    assert rounds[2]["downlink"] < rounds[0]["downlink"] / 5


def test_replayed_and_full_models_move_alike(adapter):
    moved = []
    for replayed in (True, False):
        config = dict(REPLAY)
        if not replayed:
            del config["quietbit.replay"]
            config["quietbit.mechanism.rows"] = "shared"
        federation = adapter(config, rows=700)
        for _ in range(2):
            federation.play()
        moved.append(federation.model)
    assert moved[0] == pytest.approx(moved[1], abs=1e-4)


def test_a_node_that_lost_its_model_says_so_and_gets_it_whole(engine, tmp_path):
    owners = {}
    for node in range(2):
        models = tmp_path / f"models-{node}"
        rules = {"mechanisms": ("vmvu",), "adjacency": "zero-out", "models": str(models)}
        owners[node] = owner(tmp_path, f"owner-{node}", **rules)
    federation = engine(REPLAY, nodes=2, rows=700, owners=owners)
    federation.play()
    for path in (tmp_path / "models-0").iterdir():
        path.unlink()
    federation.play()
    assert federation.reasons == {0: Reason.NEEDS_MODEL, 1: None}
    assert not federation.noted[0]
    federation.play()
    assert federation.reasons == {0: None, 1: None}
    assert federation.seen[0].tobytes() == federation.seen[1].tobytes()
    report = federation.report()
    assert [entry["resyncs"] for entry in report["rounds"]] == [0, 1, 0]
    assert [node["releases"] for node in report["nodes"]] == [2, 3]


def test_a_node_without_a_folder_is_not_asked_to_replay_for_ever(engine, tmp_path):
    rules = {"mechanisms": ("vmvu",), "adjacency": "zero-out"}
    federation = engine(REPLAY, nodes=1, rows=700, owners={0: owner(tmp_path, "bare", **rules)})
    for _ in range(4):
        federation.play()
    sizes = [entry["downlink"] for entry in federation.report()["rounds"]]
    assert [size > 4 * federation.dimension for size in sizes] == [True, False, True, False]
    assert federation.ledger(0).releases == 2


EVALUATED = {**CONFIG, "quietbit.epsilon": 80.0, "quietbit.evaluate.epsilon": 15.0}


def right(node, model):
    """Learn nothing, and be right everywhere but at node 2."""
    return Work(np.zeros(model.size), {"accuracy": float(node != 2)})


def test_evaluations_are_estimated_and_cost_what_they_say(engine):
    federation = engine(EVALUATED, right)
    for _ in range(2):
        federation.play()
    report = federation.report()
    assert len(report["evaluations"]) == 2
    for entry in report["evaluations"]:
        (estimate,) = entry["estimates"]
        assert (entry["asked"], entry["answered"]) == (3, 3)
        assert estimate["value"] == pytest.approx(2 / 3, abs=1e-3)
        assert estimate["low"] < 2 / 3 < estimate["high"]
    plan = federation.plan
    for place, node in enumerate(report["nodes"]):
        assert node["evaluations"] == 2
        assert federation.ledger(place).releases == 4
        # Exactly, in fractions: the sum of both may be rounded up, and never down.
        updates = account_of(federation.ledger(place), plan.update_target, 0).epsilon()
        both = Fraction(updates) + Fraction(plan.evaluation.spends(2))
        assert both <= Fraction(node["epsilon_upper"]) <= both * (1 + Fraction(1, 10**12))
        assert plan.evaluation.spends(2) == 30.0
    assert report["guarantee"]["epsilon_upper"] == report["nodes"][0]["epsilon_upper"] <= 80.0
    assert report["guarantee"]["delta"] == plan.delta


def longer(node, model):
    """Learn four clips of something."""
    return Work(np.full(model.size, 4.0 / math.sqrt(model.size)))


def shorter(node, model):
    """Learn a hundredth of a clip."""
    return Work(np.full(model.size, 0.01 / math.sqrt(model.size)))


def clips(federation):
    if isinstance(federation, LocalFederation):
        return list(federation.run.clips)
    return [entry["clip"] for entry in federation.report()["rounds"]]


@pytest.mark.parametrize(("app", "rises"), [(longer, True), (shorter, False)])
def test_scouts_move_the_clip_towards_the_updates(adapter, app, rises, monkeypatch):
    monkeypatch.setattr("quietbit.federation.moving_clip.SURE", 0.0)
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)
    config = {**CONFIG, "quietbit.mechanism": "gaussian", "quietbit.epsilon": 1e5}
    federation = adapter(
        {**config, "quietbit.adaptive-clip.every": 2, "quietbit.releases": 6}, app, 8
    )
    for _ in range(6):
        federation.play()
    moved = clips(federation)
    assert (moved[-1] > 1.5) if rises else (moved[-1] < 0.7), moved


def test_the_clip_of_a_round_follows_from_the_scouts_before_who_send_no_update(engine, monkeypatch):
    monkeypatch.setattr("quietbit.federation.moving_clip.SURE", 0.0)
    monkeypatch.setattr("quietbit.federation.moving_clip.RISE", 1e12)
    config = {**CONFIG, "quietbit.adaptive-clip.every": 3, "quietbit.releases": 7}
    federation = engine(config, nodes=6)
    moving = MovingClip.from_start(1.0, quantile=0.5)
    scouts = 0
    for _ in range(7):
        before = federation.model.astype(np.float64)
        federation.play()
        updates = []
        answers = None
        for node in range(6):
            uplink = federation.asked_uplink(node)
            assert uplink.clip == pytest.approx(moving.clip, rel=1e-12)
            if not isinstance(uplink.mechanism, Scout):
                updates.append((uplink, federation.payload(node)))
                continue
            scouts += 1
            if answers is None:
                answers = uplink.aggregator()
            answers.add(federation.payload(node))
        mean = updates[0][0].receive([payload for _, payload in updates])
        assert federation.model == pytest.approx(before - mean, abs=1e-4)
        if answers is None:
            moving.stay()
        else:
            moving.move(answers.answers())
    assert clips(federation) == pytest.approx(moving.history[:7], rel=1e-12)
    assert len(set(moving.history)) > 2
    report = federation.report()
    assert sum(entry["scouted"] for entry in report["rounds"]) == scouts > 0
    assert all(entry["answered"] + entry["scouted"] == 6 for entry in report["rounds"])
    for place, entry in enumerate(report["nodes"]):
        ledger = federation.ledger(place)
        cost = account_of(ledger, federation.plan.target, 0).epsilon()
        assert (entry["releases"], entry["epsilon_upper"]) == (7, cost)
        assert len(ledger.mechanisms) == 1  # scouts and updates cost the same


SAMPLES = {
    **EXACT,
    "quietbit.adjacency": "zero-out",
    "quietbit.samples.dataset-size": 10,
    "quietbit.samples.sampling-rate": 1.0,
}


def handing_over(node, model):
    """Hand ten gradients to the gate, each five clips long, and answer with nothing."""
    batch = private_batch()
    rows = np.zeros((len(batch.draw(10)), model.size))
    rows[:, 3] = 5.0
    batch.add(rows)
    return Work()


def cheating(node, model):
    """Hand nothing over, and answer with an update."""
    return Work(np.full(model.size, 0.5))


def failing(node, model):
    raise RuntimeError("patient 12 has no age")


@pytest.mark.parametrize(("app", "step"), [(handing_over, 1.0), (cheating, 0.0), (failing, 0.0)])
def test_where_samples_are_protected_only_their_clipped_gradients_count(engine, app, step):
    federation = engine(SAMPLES, app, 2)
    before = federation.model
    with suppress(QuietbitError):  # where no app handed anything over, some engines end the run
        federation.play()
    moved = before - federation.model
    assert moved[3] == pytest.approx(step, abs=0.01)
    assert np.delete(moved, 3) == pytest.approx(0.0, abs=0.01)
    report = federation.report()
    assert report["guarantee"]["unit"] == "sample"
    assert report["rounds"][0]["answered"] == 2
    assert report["rounds"][0]["crashed"] == (0 if app is handing_over else 2)


EXAMPLES = {0: 1000, 1: 10**9, 2: 250}


def counted(node, model):
    return Work(walk(node, model).update, {"num-examples": EXAMPLES.get(node, 0)})


WEIGHTED = {**CONFIG, "quietbit.weights.most-examples": 1000}


def test_weights_are_public_numbers_up_to_the_largest(engine):
    """Node 3 has no examples, and is refused."""
    federation = engine(WEIGHTED, counted, 4, metrics=["num-examples"])
    before = federation.model.astype(np.float64)
    federation.play()
    uplink = Uplink(federation.plan.mechanism_for(federation.dimension))
    singles = [uplink.receive([federation.payload(node)]) for node in range(3)]
    mean = np.average(singles, axis=0, weights=[1.0, 1.0, 0.25])
    assert federation.model == pytest.approx(before - mean, abs=1e-4)
    entry = last(federation)
    assert (entry["answered"], entry["refused"]) == (3, 1)
    assert entry["effective"] == pytest.approx(2.25**2 / (2 + 0.25**2))
    report = federation.report()
    assert [node["releases"] for node in report["nodes"]] == [1] * 4  # the refused one counts


def test_a_node_whose_owner_keeps_the_number_of_examples_declines(engine, tmp_path):
    silent = owner(tmp_path, "silent")
    telling = owner(tmp_path, "telling", metrics=["num-examples"])
    federation = engine(WEIGHTED, counted, 2, owners={0: silent, 1: telling})
    federation.play()
    assert federation.reasons == {0: Reason.NOT_ALLOWED, 1: None}
    assert [federation.ledger(node).releases for node in range(2)] == [0, 1]
    assert [node["releases"] for node in federation.report()["nodes"]] == [0, 1]


def test_only_named_metrics_leave(engine):
    secret = {"loss": 0.25, "accuracy": 0.75, "num-examples": 31}
    federation = engine(
        CONFIG, lambda node, model: Work(np.zeros(model.size), secret), 1, metrics=["loss"]
    )
    sent = []
    answer = federation._answer

    def watched(node, message):
        reply = answer(node, message)
        content = reply.content if isinstance(federation, FlowerFederation) else reply
        sent.append(str(content).encode())
        return reply

    federation._answer = watched
    federation.play()
    assert b"0.25" in sent[0]
    assert b"0.75" not in sent[0]
    assert b"num-examples" not in sent[0]
