"""The server: FedAvg inside PrivateStrategy; leaves the model and the report in the results
folder.
"""

import json
from pathlib import Path

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from private_digits.task import problem, to_arrays, to_vector
from quietbit.flower import PrivateStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    task = problem(config["samples"])

    def evaluate(number, arrays):
        score = task.evaluate(to_vector(arrays))
        return MetricRecord({"accuracy": score.accuracy, "loss": score.loss})

    inner = FedAvg(min_train_nodes=10, min_available_nodes=10, min_evaluate_nodes=10)
    strategy = PrivateStrategy(inner, config)
    result = strategy.start(
        grid, to_arrays(task.initial(0)), config["num-server-rounds"], evaluate_fn=evaluate
    )
    folder = Path(config["results"])
    np.save(folder / "parameters.npy", to_vector(result.arrays))
    strategy.report().save(folder / "report.json")
    metrics = {
        "train": {
            number: dict(record) for number, record in result.train_metrics_clientapp.items()
        },
        "evaluate": {
            number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()
        },
        "server": {
            number: dict(record) for number, record in result.evaluate_metrics_serverapp.items()
        },
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
