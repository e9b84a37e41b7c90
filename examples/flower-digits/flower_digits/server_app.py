"""What the server does: FedAvg, scored on test digits after every round.

One line lets it read private updates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_digits.task import accuracy, load, start
from quietbit.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, then say how well the model does and what it has cost the clients."""
    config = context.run_config
    nodes = int(config["nodes"])
    _, test = load()

    def score(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(
            {"accuracy": accuracy({name: array.numpy() for name, array in arrays.items()}, test)}
        )

    strategy = PrivateStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes),
        context.run_config,
    )
    initial = ArrayRecord({name: Array(values) for name, values in start().items()})
    result = strategy.start(
        grid=grid,
        initial_arrays=initial,
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=score,
    )
    report = strategy.report()
    print(report)
    print(f"accuracy on test digits: {report.scores[-1]['accuracy']:.3f}")
    if config["output"]:
        folder = Path(str(config["output"]))
        np.savez(
            folder / "model.npz",
            weight=result.arrays["weight"].numpy(),
            bias=result.arrays["bias"].numpy(),
        )
        report.save(folder / "run.json")  # `quietbit report run.json` makes a page of it
