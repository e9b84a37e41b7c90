"""The task itself, with neither NVFlare nor quietbit.

Biopsies of 569 patients (scikit-learn's), a linear model.

Every patient is one sample. What a sample becomes depends on that patient alone: measurements are
divided by round numbers that are written here, not by statistics of the hospitals' own patients,
which would tell about all of them.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

TEST = 119
# The order of magnitude of each measurement (radius, texture, perimeter, area, ...): mean, standard
# error, worst.
MEAN = (1e1, 1e1, 1e2, 1e3, 1e-1, 1e-1, 1e-1, 1e-1, 1e-1, 1e-1)
ERROR = (1e0, 1e0, 1e0, 1e2, 1e-2, 1e-2, 1e-1, 1e-2, 1e-2, 1e-2)
SCALE = np.array(MEAN + ERROR + MEAN)
LONGEST = 4.0  # of a patient's vector
Patients = tuple[torch.Tensor, torch.Tensor]


class Model(torch.nn.Linear):
    """A score from 30 measurements: 31 parameters, which start at zero."""

    def __init__(self) -> None:
        """Start where nothing is known."""
        super().__init__(30, 1)
        with torch.no_grad():
            for part in self.parameters():
                part.zero_()


def loss(scores: torch.Tensor, benign: torch.Tensor) -> torch.Tensor:
    """One number per patient."""
    return torch.nn.functional.binary_cross_entropy_with_logits(
        scores[:, 0], benign, reduction="none"
    )


def load() -> tuple[Patients, Patients]:
    """Return patients to train with and to test with, in an order that is always the same."""
    measured, benign = load_breast_cancer(return_X_y=True)
    rows = np.log(measured / SCALE + 1e-3)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / LONGEST)
    order = np.random.default_rng(0).permutation(len(rows))
    inputs = torch.tensor(rows[order], dtype=torch.float32)
    targets = torch.tensor(benign[order], dtype=torch.float32)
    return (inputs[TEST:], targets[TEST:]), (inputs[:TEST], targets[:TEST])


def of_site(site: int, sites: int) -> Patients:
    """Return the patients of one hospital."""
    (inputs, targets), _ = load()
    return inputs[site::sites], targets[site::sites]


def accuracy(model: Model, patients: Patients) -> float:
    """Return the share of patients that the model gets right."""
    with torch.no_grad():
        return float(((model(patients[0])[:, 0] > 0) == (patients[1] > 0.5)).float().mean())
