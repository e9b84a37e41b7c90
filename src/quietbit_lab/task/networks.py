"""The small networks of the paper's experiments.

Idea     tanh where gradients are clipped, because its values and gradients stay bounded; no batch statistics,
         which would mix samples.
Source   Papernot et al. (AAAI 2021) for tanh, and the layers of Tramèr and Boneh (ICLR 2021) for MNIST;
         Guo et al. (ICML 2023), section "Sample-level DP", for a 4-layer network of 46k parameters.
"""

from __future__ import annotations

from typing import Any

from quietbit._validate import require_module

__all__ = ["femnist_network", "mnist_network"]


def mnist_network() -> Any:
    """Two convolutions and two dense layers with tanh: 26,010 parameters, 28 x 28 to 10 classes."""
    nn = require_module("torch", "lab").nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def femnist_network() -> Any:
    """Four convolutions of 32 channels and one dense layer: 45,982 parameters, 28 x 28 to 62 classes.

    Weights start with the variance of He et al. (2015), which keeps signals alive through the rectifiers:
    from torch's own start nothing was learnt in 160 rounds.
    """
    nn = require_module("torch", "lab").nn
    layers: list[Any] = []
    for place, channels in enumerate((1, 32, 32, 32)):
        layers.append(nn.Conv2d(channels, 32, 3, padding=1))
        if place < 3:
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.ReLU())  # after pooling: the same function, on a quarter of the values
    layers += [nn.Flatten(), nn.Linear(32 * 3 * 3, 62)]
    for layer in layers:
        if hasattr(layer, "weight"):
            rectified = "relu" if layer.weight.ndim == 4 else "linear"
            nn.init.kaiming_normal_(layer.weight, nonlinearity=rectified)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
