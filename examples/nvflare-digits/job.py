"""The job: FedAvg over some sites, made private by one call, and run in NVFlare's simulator.

python job.py --sites 4 --rounds 5 --workspace /tmp/nvflare-digits
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from digits import accuracy, load, start
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from quietbit.nvflare import add_privacy

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Train for some rounds, then say how well the model does.

    The server's log has what it has cost the sites.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=20.0)
    parser.add_argument("--workspace", default="nvflare-digits-output")
    parser.add_argument("--seed", type=int, help="repeatable randomness, which protects nobody")
    parser.add_argument(
        "--write", metavar="FOLDER", help="write the job into this folder instead of running it"
    )
    chosen = parser.parse_args()
    workspace = Path(chosen.workspace).resolve()
    jobs = Path(chosen.write).resolve() if chosen.write else None
    os.chdir(HERE)
    recipe = NumpyFedAvgRecipe(
        name="digits",
        model=start().tolist(),
        min_clients=chosen.sites,
        num_rounds=chosen.rounds,
        train_script="client.py",
        train_args=str(chosen.sites),
    )
    recipe.add_client_file("digits.py")
    settings = {
        "quietbit.mechanism": "imvu",
        "quietbit.clip": 0.5,
        "quietbit.epsilon": chosen.epsilon,
        "quietbit.adjacency": "zero-out",
        "quietbit.releases": chosen.rounds,
    }
    add_privacy(recipe, settings, simulation=True, seed=chosen.seed)
    if jobs is not None:
        recipe.export(str(jobs))
        return
    recipe.execute(SimEnv(num_clients=chosen.sites, workspace_root=str(workspace)))
    job = workspace / "digits" / "server" / "simulate_job"
    print((job / "quietbit-report.json").read_text(encoding="utf-8"))
    model = np.load(job / "models" / "server.npy")
    print(f"accuracy on test digits: {accuracy(model, load()[1]):.3f}")


if __name__ == "__main__":
    main()
