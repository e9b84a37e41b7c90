"""FedAvg over whoever answers; the model after every round, and at last the report, are written
where a test looks.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quietbit.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    folder, nodes = Path(str(config["output"])), int(config["nodes"])
    folder.mkdir()
    strategy = PrivateStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes),
        context.run_config,
    )

    def keep(number: int, arrays: ArrayRecord) -> None:
        np.save(folder / "writing.npy", arrays["model"].numpy())
        (folder / "writing.npy").rename(folder / f"round-{number}.npy")

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(
            {"model": Array(np.zeros(int(config["dimension"]), np.float32))}
        ),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=keep,
    )
    (folder / "writing.json").write_text(json.dumps(strategy.report().to_json()), encoding="utf-8")
    (folder / "writing.json").rename(folder / "report.json")
