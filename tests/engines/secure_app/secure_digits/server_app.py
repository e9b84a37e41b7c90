"""The server: FedAvg inside PrivateStrategy; leaves the model of every round and the report in
the results folder.
"""

from pathlib import Path

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from quietbit.flower import PrivateStrategy, simulated_members
from secure_digits.task import problem, to_arrays, to_vector

app = ServerApp()


@app.main()
def main(grid, context):
    config, models = context.run_config, []

    def keep(number, arrays):
        models.append(to_vector(arrays))
        return MetricRecord({"accuracy": problem().evaluate(models[-1]).accuracy})

    nodes = config["nodes"]
    inner = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes, fraction_evaluate=0.0)
    strategy = PrivateStrategy(inner, config, members=simulated_members(nodes))
    initial = to_arrays(problem().initial(0))
    strategy.start(grid, initial, config["num-server-rounds"], timeout=120.0, evaluate_fn=keep)
    folder = Path(config["results"])
    np.save(folder / "models.npy", np.stack(models))
    strategy.report().save(folder / "report.json")
