"""Does the error of k kept coordinates grow with the dimension? Measured on the real path, relative to Gaussian noise.

    python benchmarks/kept_coordinates.py [--large] [--plot kept.png]

One release at epsilon 4, delta 1e-5, replace-one: the vector mechanism with k = 1,024 and one-bit
I-MVU on k = 256 rotated coordinates. An update of norm 1 with a decaying spectrum is sent and
received alone, several times; the error is the mean squared error per coordinate, over the claim
and over that of Gaussian noise with its exact account.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from quietbit import Ball, Norm, Uplink, calibrate
from quietbit_lab.plot.figure import blank_figure, plain_axes, save_figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="also 10^8 coordinates (about 4 GB)")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    powers = range(4, 9 if given.large else 8)
    found: dict[str, list[float]] = {}
    for name, keep in (("vmvu", 1024), ("imvu", 256)):
        for power in powers:
            dimension, began = 10**power, time.perf_counter()
            ball = Ball(Norm.L2, dimension)
            mechanism = calibrate(
                name, ball=ball, epsilon=4.0, delta=1e-5, adjacency="replace-one", coordinates=keep
            ).mechanism
            yardstick = calibrate(
                "gaussian", ball=ball, epsilon=4.0, delta=1e-5, adjacency="replace-one"
            ).squared_error
            uplink = Uplink(mechanism)
            update = (
                np.random.default_rng(1).normal(size=dimension)
                / np.sqrt(1.0 + np.arange(dimension))
            ).astype(np.float32)
            update /= np.linalg.norm(update)
            errors = []
            for _ in range(max(3, 10 ** max(0, 6 - power))):
                errors.append(float(np.mean((uplink.receive([uplink.send(update)]) - update) ** 2)))
            ratio = float(np.mean(errors)) / yardstick
            found.setdefault(f"{name}, k = {keep}", []).append(ratio)
            claim = float(np.mean(errors)) / mechanism.error().squared
            seconds = time.perf_counter() - began
            print(
                f"{name} {keep} 10^{power}: {ratio:.3f} of the Gaussian's, {claim:.3f} of the claim, {seconds:.1f} s"
            )
    if given.plot is not None:
        figure = blank_figure(6.0, 3.4)
        axes = plain_axes(
            figure.add_subplot(), "error at fixed k", "dimension", "squared error / Gaussian's"
        )
        for label, ratios in found.items():
            axes.plot([10**power for power in powers], ratios, marker="o", label=label)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.4)
        axes.legend(frameon=False)
        save_figure(figure, given.plot)


if __name__ == "__main__":
    main()
