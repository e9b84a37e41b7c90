"""Every epsilon that a person reads is the account's: page, log, JSON and command line.

Plans are drawn at random (evaluations, scouts, sums, samples) and run without a network. The cost
is then added up from the nodes' own ledgers, or from the schedule, and never from the report that
is tested. A number that is shown may be larger than that by the rounding to four digits, and never
smaller.
"""

import json
import random
import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from cli.kit import shell
from engines.flower.kit import (
    DIMENSION,
    HandGrid,
    app,
    be_the_server,
    context,
    gated,
    ledger,
    model,
    simulated,
)
from engines.flower.secure_kit import Room
from engines.flower.test_evaluation import evaluates
from federation.simulate.makers import chosen, small_problem
from quietbit import Plan
from quietbit.federation.simulate.loop import simulate
from quietbit.federation.simulate.participation import releases_per_client
from quietbit.flower import PrivateStrategy, Simulation, private_batch
from quietbit.node.budget import ANSWERS, account_of
from quietbit_lab.cli.train import _rows, _shown
from quietbit_lab.experiment.record import run_record
from quietbit_lab.report.page import render_page
from quietbit_lab.report.runs import PlacedRun, read_placed_runs

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededRngWarning")
SHOWN = re.compile(r"epsilon (?:<=|≤|at most|is) ?([0-9.e+-]*[0-9])")
ROUNDING = 1.0011  # four digits, rounded up
NODES = 6
MOD = simulated(gated(simulation=Simulation(seed=3)))
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
KINDS = ("plain", "evaluated", "scouts", "samples", "sums", "both")
DRAWS = [
    pytest.param(kind, seed, marks=pytest.mark.long if seed else ())
    for seed in range(3)
    for kind in KINDS
]


def drawn(kind, seed):
    """Return a run config of this kind, and how many rounds to run."""
    rng = random.Random(f"{kind} {seed}")  # noqa: S311 - draws plans
    rounds = rng.randint(1, 4)
    config = {
        "mechanism": rng.choice(["vmvu", "imvu", "gaussian"]),
        "clip": rng.choice([0.5, 1.0, 3.0]),
        "epsilon": round(rng.uniform(2.0, 12.0), 3),
        "adjacency": rng.choice(["zero-out", "replace-one"]),
        "releases": rng.randint(rounds, rounds + 2),
    }
    if kind == "scouts":
        config |= {"adaptive-clip.every": 2, "epsilon": 15.0, "mechanism": "gaussian"}
    if kind == "samples":
        config |= {"mechanism": "gaussian", "adjacency": "zero-out"}
        config["samples.dataset-size"] = rng.randint(30, 300)
        config["samples.sampling-rate"] = rng.choice([0.1, 0.5])
    if kind in ("sums", "both"):
        config |= {"mechanism": "imvu", "adjacency": "zero-out", "trust": "secure-aggregation"}
        sums = {"threshold": 4, "adversary": "honest-but-curious", "honest-clients": 3}
        config |= {f"secure-aggregation.{key}": value for key, value in sums.items()}
    if kind in ("evaluated", "both") or (kind == "samples" and rng.random() < 0.5):
        answers = rng.randint(1, rounds)
        share = rng.uniform(0.1, 0.4) * config["epsilon"]
        config["evaluate.epsilon"] = round(share / answers, 3)
        config["evaluate.releases"] = answers
    return {f"quietbit.{key}": value for key, value in config.items()}, rounds


def batches(message, _):
    """Answer a request for samples with gradients of the drawn batch."""
    batch = private_batch()
    count = len(batch.draw(40))
    batch.add(np.random.default_rng(count).normal(size=(count, DIMENSION)))
    record = next(iter(message.content.array_records.values()))
    zeros = {name: Array(np.zeros(array.shape, np.float32)) for name, array in record.items()}
    return Message(RecordDict({"arrays": ArrayRecord(zeros)}), reply_to=message)


def epsilon_of(books, plan):
    """Return what a node's own ledger amounts to: its updates, and its answers to evaluations."""
    honest = 0 if plan.secure_aggregation is None else plan.secure_aggregation.honest_clients
    updates = account_of(books, plan.update_target, honest).epsilon()
    return updates + account_of(books, plan.target, 0, kind=ANSWERS).total().pure_epsilon()


class Engine:
    """Flower's strategy and nodes in this process."""

    def __init__(self, config, metric=0.8):
        be_the_server()
        self.metric = metric
        self.plan = Plan.from_run_config(config)
        least = {f"min_{what}_nodes": NODES for what in ("train", "available", "evaluate")}
        self.strategy = PrivateStrategy(FedAvg(**least), config)
        nodes = list(range(101, 101 + NODES))
        if self.plan.secure_aggregation is None:
            self.grid, self.carry = HandGrid(nodes), self.send
            self.contexts = {node: context(node, place, config) for place, node in enumerate(nodes)}
        else:
            self.grid = Room(config=config, nodes=nodes)
            self.carry, self.contexts = self.grid.carry, self.grid.contexts

    def send(self, message, call):
        return MOD(message, self.contexts[message.metadata.dst_node_id], call)

    def run(self, rounds):
        update = batches if self.plan.samples is not None else app(np.full(DIMENSION, 0.01))
        for number in range(1, rounds + 1):
            given = number, model(), ConfigRecord(), self.grid
            asked = self.strategy.configure_train(*given)
            replies = [self.carry(message, update) for message in asked]
            _, metrics = self.strategy.aggregate_train(number, replies)
            if self.plan.evaluation is not None and number <= self.plan.evaluation.releases:
                asked = list(self.strategy.configure_evaluate(*given))
                replies = [self.carry(message, evaluates(self.metric)) for message in asked]
                metrics = self.strategy.aggregate_evaluate(number, replies)
        return metrics

    def cost(self):
        """Return what the worst node's own ledger amounts to."""
        return max(epsilon_of(ledger(place), self.plan) for place in self.contexts.values())


def check(numbers, cost, *, least=1):
    """Assert that there are numbers, that none is below the cost, and none far above."""
    assert len(numbers) >= least
    for number in numbers:
        assert cost * (1 - 1e-9) <= float(number) <= cost * ROUNDING + 1e-9, (number, cost)


def of_page(page):
    """Return the data of a page, and every epsilon in its own sentences."""
    data = json.loads(DATA.search(page).group(1))
    return data, SHOWN.findall(page.split("<script")[0])


@pytest.mark.parametrize(("kind", "seed"), DRAWS)
def test_an_engine_shows_what_the_nodes_ledgers_say(kind, seed, tmp_path, capsys):
    config, rounds = drawn(kind, seed)
    engine = Engine(config)
    metrics = engine.run(rounds)
    cost = engine.cost()
    report = engine.strategy.report()

    check([report.guarantee.epsilon_upper, metrics["quietbit-epsilon"]], cost)
    check(SHOWN.findall(report.promise()), cost)
    text = str(report)
    check(SHOWN.findall(text.splitlines()[-1]), cost)
    check(re.findall(r"most \d+ \(epsilon ([0-9.]+)\)", text), cost)

    values = json.loads(json.dumps(report.to_json()))
    check([values["guarantee"]["epsilon_upper"], values["rounds"][-1]["epsilon_upper"]], cost)
    check(SHOWN.findall(values["guarantee"]["sentence"]), cost)
    check([max(node["epsilon_upper"] for node in values["nodes"])], cost)

    saved = tmp_path / "report.json"
    scores = [{"round": number, "accuracy": 0.5} for number in range(rounds + 1)]
    saved.write_text(json.dumps(values | {"scores": scores}))
    data, sentences = of_page(render_page(read_placed_runs([saved])))
    check(sentences, cost)
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["comparisons"][0]["rows"]]
    check([max(rows, key=lambda row: row["rounds"])["epsilon"]], cost)
    check([max(row["epsilon"] for row in rows)], cost)
    unscored = tmp_path / "unscored.json"
    unscored.write_text(json.dumps(values | {"scores": [], "evaluations": []}))
    check(of_page(render_page(read_placed_runs([unscored])))[1], cost)
    shown = shell(capsys, "report", saved, "--out", tmp_path / "page.html")
    check(SHOWN.findall(" ".join(shown.out.split())), cost)


def test_a_report_of_an_older_version_that_left_evaluations_out_of_its_rounds(tmp_path):
    """The page of an epsilon of 8 said 6: the rounds' own numbers had no evaluations in them."""
    config = {
        "quietbit.mechanism": "vmvu",
        "quietbit.clip": 1.0,
        "quietbit.epsilon": 8.0,
        "quietbit.releases": 2,
        "quietbit.adjacency": "zero-out",
        "quietbit.evaluate.epsilon": 1.0,
        "quietbit.evaluate.releases": 2,
    }
    engine = Engine(config)
    engine.run(2)
    values = engine.strategy.report().to_json()
    for entry, spent in zip(values["rounds"], (3.0, 6.0), strict=True):
        entry["epsilon_upper"] = spent
    path = tmp_path / "old.json"
    path.write_text(json.dumps(values))
    (run,) = read_placed_runs([path])
    check([point["epsilon_upper"] for point in run.record["points"]], engine.cost(), least=2)


LOCAL = [
    ("imvu", {}),
    ("vmvu", {}),
    ("gaussian", {"trust": "central"}),
    ("gaussian", {"clip_scouts": 3}),
    ("imvu", {"trust": "secure-aggregation"}),
    ("sign", {}),
]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("mechanism", "more"), LOCAL)
def test_the_simulator_shows_what_the_schedule_costs(mechanism, more, seed):
    rng = random.Random(f"{mechanism} {more} {seed}")  # noqa: S311 - draws plans
    plan, training = chosen(
        mechanism=mechanism,
        epsilon=round(rng.uniform(3.0, 9.0), 3),
        clip=1.0,
        lr=0.5,
        cohort=20,
        rng="seeded",
        seed=seed,
        rounds=rng.randint(3, 7),
        evaluate_every=2,
        **more,
    )
    problem = small_problem()
    run = simulate(problem, plan, training)
    assert run.status == "finished"
    counts = releases_per_client(plan.schedule(problem.sizes.size), training.rounds)
    cost = (plan.release(run.mechanism) * int(counts.max())).epsilon(plan.delta)
    assert cost <= plan.epsilon

    record = json.loads(json.dumps(run_record(run, {"name": "clusters"})))
    check([run.guarantee.epsilon_upper, record["guarantee"]["epsilon_upper"]], cost)
    check([record["points"][-1]["epsilon_upper"]], cost)
    check(SHOWN.findall(record["guarantee"]["sentence"]), cost)
    for number in SHOWN.findall(_shown(run.points[-1])):
        assert cost <= float(number) <= 1.01 * cost  # a line of progress has three digits
    rows = {row.key: row for row in _rows(run, record["protects"], None)}
    check(SHOWN.findall(rows["guarantee"].shown), cost)
    check(re.findall(r"most \d+ \(epsilon ([0-9.]+)\)", rows["participation"].value), cost)
    data, _ = of_page(render_page([PlacedRun("it", record)]))
    shown = [dict(zip(data["columns"], row, strict=True)) for row in data["comparisons"][0]["rows"]]
    check([max(row["epsilon"] for row in shown)], cost)
