"""Swarm learning over three hospitals, made private by one line, in NVFlare's simulator.

python swarm.py --epsilon 4 --workspace /tmp/nvflare-swarm
python swarm.py --epsilon 0    # the same job without privacy
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe
from nvflare.recipe import SimEnv
from patients import Model, accuracy, load

from quietbit.nvflare import LocalPrivacy

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Train for some rounds, in which another hospital aggregates each; say how well it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="steps of a hospital per round")
    parser.add_argument(
        "--epsilon", type=float, default=4.0, help="of a patient, for the whole job; 0: no privacy"
    )
    parser.add_argument("--workspace", default="nvflare-swarm-output")
    chosen = parser.parse_args()
    workspace = Path(chosen.workspace).resolve()
    os.chdir(HERE)
    private = chosen.epsilon > 0
    recipe = SwarmLearningRecipe(
        name="swarm",
        model=Model(),
        min_clients=chosen.sites,
        num_rounds=chosen.rounds,
        train_script="ward.py" if private else "open_ward.py",
        train_args={"script_args": str(chosen.sites)},
        key_metric=None,
    )
    recipe.add_client_file("patients.py")
    if private:
        line = LocalPrivacy(
            epsilon=chosen.epsilon,
            clip=1.0,
            releases=chosen.rounds,
            adjacency="zero-out",
            samples={
                "dataset-size": 150,
                "sampling-rate": 0.2,
                "steps": chosen.steps,
                "learning-rate": 1.0,
            },
        )
        recipe.add_client_output_filter(line, tasks=["train"])
    recipe.execute(SimEnv(num_clients=chosen.sites, workspace_root=str(workspace)))
    job = workspace / "swarm"
    model = Model()
    saved = torch.load(
        job / "site-1" / "simulate_job" / "app_site-1" / "FL_global_model.pt", weights_only=False
    )
    model.load_state_dict(saved["model"])
    print(f"accuracy on test patients: {accuracy(model, load()[1]):.3f}")
    if private:
        table = (job / "site-1" / "simulate_job" / "quietbit-epsilon.csv").read_text()
        print(f"site-1, release by release:\n{table}")


if __name__ == "__main__":
    main()
