"""The job: FedAvg over three hospitals, made private by one call, and run in NVFlare's simulator.

python study.py --epsilon 4 --workspace /tmp/nvflare-patients
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from patients import Model, accuracy, load

from quietbit.nvflare import add_privacy

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Train for some rounds; say how well the model does and what it may cost any patient."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=20, help="private steps of a hospital per round"
    )
    parser.add_argument(
        "--epsilon", type=float, default=4.0, help="of a patient, for the whole job"
    )
    parser.add_argument("--workspace", default="nvflare-patients-output")
    parser.add_argument(
        "--write", metavar="FOLDER", help="write the job into this folder instead of running it"
    )
    chosen = parser.parse_args()
    workspace = Path(chosen.workspace).resolve()
    jobs = Path(chosen.write).resolve() if chosen.write else None
    os.chdir(HERE)
    recipe = FedAvgRecipe(
        name="patients",
        model=Model(),
        min_clients=chosen.sites,
        num_rounds=chosen.rounds,
        train_script="ward.py",
        train_args=str(chosen.sites),
    )
    recipe.add_client_file("patients.py")
    settings = {
        "quietbit.mechanism": "gaussian",
        "quietbit.clip": 1.0,
        "quietbit.epsilon": chosen.epsilon,
        "quietbit.adjacency": "zero-out",
        "quietbit.releases": chosen.rounds,
        "quietbit.samples.dataset-size": 150,
        "quietbit.samples.sampling-rate": 0.2,
        "quietbit.samples.steps": chosen.steps,
        "quietbit.samples.learning-rate": 1.0,
    }
    add_privacy(recipe, settings, simulation=True)
    if jobs is not None:
        recipe.export(str(jobs))
        return
    recipe.execute(SimEnv(num_clients=chosen.sites, workspace_root=str(workspace)))
    job, model = workspace / "patients" / "server" / "simulate_job", Model()
    saved = torch.load(job / "app_server" / "FL_global_model.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    report = json.loads((job / "quietbit-report.json").read_text(encoding="utf-8"))
    print(f"accuracy on test patients: {accuracy(model, load()[1]):.3f}")
    print(f"any patient of any hospital: {report['guarantee']['sentence']}")


if __name__ == "__main__":
    main()
