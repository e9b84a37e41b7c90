"""What the server does: FedAvgM on the few trained numbers. One line lets it read private updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from flower_language.adapters import frozen_bytes
from flower_language.task import Choice, load, loss, start, test_authors
from quietbit.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; say what was learnt, what it cost, and what would have travelled otherwise."""
    config = context.run_config
    choice = Choice.of(config)
    nodes = int(config["nodes"])
    texts = test_authors(choice)
    initial = start(choice)

    def score(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(
            {"loss": loss(choice, {name: array.numpy() for name, array in arrays.items()}, texts)}
        )

    rate = float(config["server-rate"])
    inner = FedAvgM(
        fraction_evaluate=0.0,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        server_learning_rate=rate,
    )
    strategy = PrivateStrategy(inner, config)
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
    numbers = sum(values.size for values in initial.values())
    whole = frozen_bytes(load(choice))
    print(
        f"nats per token of authors who took no part: {loss(choice, initial, texts):.3f} before",
        end=", ",
    )
    print(f"{report.scores[-1]['loss']:.3f} after")
    payload = sum(entry.uplink_payload for entry in report.rounds) // answers
    print(f"bytes per client and round: {payload:,} of payload up; whole messages", end=" ")
    print(f"{report.uplink // answers:,} up and {report.downlink // answers:,} down")
    print(
        f"  beside {4 * numbers:,} each way for the {numbers:,} trained numbers and {whole:,} for the model"
    )
    if config["output"]:
        folder = Path(str(config["output"]))
        trained: dict[str, Any] = {name: array.numpy() for name, array in result.arrays.items()}
        np.savez(folder / "adapters.npz", **trained)
        report.save(folder / "run.json")
