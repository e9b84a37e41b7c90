"""What the server does: FedAvgM on the trained numbers. One line lets it read private updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from flower_language.adapters import count, frozen_bytes
from flower_language.task import Choice, basis, load, loss, start, test_authors
from quietbit import Plan, compare
from quietbit.flower import PrivateStrategy

KINDS = {
    "biases": "*.residual_bias",
    "gains of norms": "*norm.weight",
    "low-rank factors": "*.lora_b",
}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Say what to expect, train for some rounds, and say what was learnt, and what it cost."""
    config = context.run_config
    choice = Choice.of(config)
    nodes = int(config["nodes"])
    texts = test_authors(choice)
    initial = start(choice)

    def score(number: int, arrays: ArrayRecord) -> MetricRecord:
        numbers = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"loss": loss(choice, numbers, texts)})

    inner = FedAvgM(
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        server_learning_rate=float(config["server-rate"]),
    )
    strategy = PrivateStrategy(inner, config, basis=basis(choice))
    print_what_to_train(choice, strategy.settings, nodes)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(values) for name, values in initial.items()}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=score,
    )
    report = strategy.report()
    print(report)
    answers = sum(entry.answered for entry in report.rounds)
    payload = sum(entry.uplink_payload for entry in report.rounds) // answers
    numbers = sum(values.size for values in initial.values())
    before = loss(choice, initial, texts)
    after = report.scores[-1]["loss"]
    print(
        f"nats per token of authors who took no part: {before:.3f} before, {after:.3f} after\n"
        f"bytes per client per round: {payload:,} of payload up; whole messages"
        f" {report.uplink // answers:,} up and {report.downlink // answers:,} down\n"
        f"  beside {4 * numbers:,} each way for the {numbers:,} trained numbers"
        f" and {frozen_bytes(load(choice)):,} for the model"
    )
    if config["output"]:
        folder = Path(str(config["output"]))
        trained: dict[str, Any] = {name: array.numpy() for name, array in result.arrays.items()}
        np.savez(folder / "adapters.npz", **trained)
        report.save(folder / "run.json")


def print_what_to_train(choice: Choice, plan: Plan, nodes: int) -> None:
    """Print the noise to expect for every kind of numbers that the model could train."""
    target = plan.target
    print(f"what to train with {nodes:,} clients at epsilon {target.epsilon:g}:")
    for kind, patterns in KINDS.items():
        numbers = count(load(choice), patterns)
        if numbers == 0:
            continue
        comparison = compare(
            choice.directions or numbers,
            epsilon=target.epsilon,
            delta=target.delta,
            adjacency=target.adjacency,
            cohort=nodes,
            releases=target.releases,
            trust=target.trust,
        )
        best = comparison.best(target.trust)
        if best is None or best.expected is None:
            continue
        expected = best.expected
        print(
            f"  {kind:<16} {numbers:>7,} numbers, {best.name}: noise of a round"
            f" {expected.noise:.1f} times the clip, {expected.verdict.value}"
        )
