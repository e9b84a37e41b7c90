"""Draw how an update becomes a bit, for light and for dark pages.

    python docs/hooks/picture.py

Idea     the first three panels follow one real update (a gradient on the embedded digits) through
         one-bit I-MVU; the last measures the error of a private mean over what a client sends, with
         every mechanism at the same guarantee. Seeds are fixed, so the same picture can be drawn
         again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray

from quietbit import Adjacency, Ball, InterpolatedMVU, Norm, Uplink, calibrate, seeded_rng
from quietbit.federation.simulate.problem import LocalPlan
from quietbit.wire.payload import Payload
from quietbit_lab.baseline.noise import Sign
from quietbit_lab.plot.figure import MATPLOTLIB, MECHANISMS, blank_figure, save_figure
from quietbit_lab.task.registry import TaskSpec, build_task

FOLDER = Path(__file__).parent.parent / "images"
INKS = {"light": ("#1f2430", "#d9dce3"), "dark": ("#e8ebf2", "#4a5060")}
DIMENSION, CLIENTS = 100_000, 40
EPSILON, DELTA, RELEASES = 3.0, 1e-5, 50  # replace-one, local
NAMES: dict[str, str] = {
    "imvu": "I-MVU, 1 bit",
    "sign": "SignSGD, 1 bit",
    "skellam": "Skellam, 16 bits",
    "gaussian": "Gaussian, 32 bits",
}
PLACES = {"imvu": (10, -3), "sign": (10, -3), "skellam": (-10, -3), "gaussian": (6, -17)}


class Measured(NamedTuple):
    """A mechanism on the wire: bytes of a payload, and the error of a mean relative to Gaussian noise's account."""

    size: int
    error: float


def measure(name: str) -> Measured:
    """Send the updates of some clients, take the mean, and compare it with the truth."""
    ball = Ball(Norm.L2, DIMENSION)
    found = calibrate(
        name,
        ball=ball,
        epsilon=EPSILON,
        delta=DELTA,
        releases=RELEASES,
        adjacency=Adjacency.REPLACE_ONE,
    )
    uplink, rng = Uplink(found.mechanism), seeded_rng(1)
    updates = np.random.default_rng(1).normal(size=(CLIENTS, DIMENSION)) / (
        1.1 * np.sqrt(DIMENSION)
    )
    payloads = [uplink.send(update, rng) for update in updates]
    mean = uplink.receive(payloads)
    if isinstance(found.mechanism, Sign):  # +1 and -1 have no unit
        mean = mean / found.mechanism.slope_at_zero
    error = (
        float(np.mean(np.square(mean - updates.mean(axis=0))))
        * CLIENTS
        / found.gaussian_squared_error
    )
    print(
        f"{NAMES[name]}: {len(payloads[0]):,} bytes, squared error {error:.3f} times Gaussian noise's"
    )
    return Measured(len(payloads[0]), error)


def one_update() -> tuple[NDArray[np.float32], InterpolatedMVU]:
    """Return an update of the digits, clipped, and the mechanism for eight releases of it at epsilon 10."""
    problem = build_task(TaskSpec("digits"), seed=1)
    rows = np.empty((1, problem.dimension), dtype=np.float32)
    problem.updates(problem.initial(1), np.array([7]), LocalPlan(Norm.L2, 1.0), rows)
    ball = Ball(Norm.L2, problem.dimension)
    found = calibrate(
        "imvu", ball=ball, epsilon=10.0, delta=DELTA, releases=8, adjacency=Adjacency.ZERO_OUT
    )
    if not isinstance(found.mechanism, InterpolatedMVU):
        raise TypeError(found.mechanism)
    return rows[0], found.mechanism


def draw(
    theme: str,
    update: NDArray[np.float32],
    mechanism: InterpolatedMVU,
    measured: dict[str, Measured],
) -> Path:
    """One file per theme."""
    ink, faint = INKS[theme]
    colour = {name: getattr(look, theme) for name, look in MECHANISMS.items()}
    figure = blank_figure(11.5, 3.1)
    figure.set_facecolor("none")
    axes = figure.subplots(1, 4, gridspec_kw={"width_ratios": [1, 1, 0.95, 1.3], "wspace": 0.06})
    titles = (
        "an update, clipped,",
        "tilts coins a little,",
        "their flips leave the device,",
        "and the mean is as good",
    )
    for place, (one, title) in enumerate(zip(axes, titles, strict=True)):
        one.set_facecolor("none")
        one.set_title(
            f"{place + 1}. {title}", loc="left", fontsize=11, color=ink, fontweight="bold"
        )
        one.tick_params(colors=ink, labelsize=9, length=3)
        for side, spine in one.spines.items():
            spine.set_visible(side in ("left", "bottom") and place != 2)
            spine.set_color(faint)
        one.xaxis.label.set_color(ink)
        one.yaxis.label.set_color(ink)
    reach = float(np.abs(update).max()) * 1.1

    axes[0].hist(update, bins=41, range=(-reach, reach), color=colour["gaussian"], log=True)
    axes[0].set(xlabel=f"its {update.size} coordinates", yticks=[])
    axes[0].yaxis.set_minor_locator(_nothing())
    axes[0].spines["left"].set_visible(False)

    grid = np.linspace(-reach, reach, 201)
    law = [mechanism.distribution(float(value))[1] for value in grid]
    axes[1].axhline(0.5, color=faint, linewidth=1)
    axes[1].fill_between(grid, 0.5, law, color=colour["imvu"], alpha=0.2, linewidth=0)
    axes[1].plot(grid, law, color=colour["imvu"], linewidth=2.4)
    axes[1].set(
        xlabel="value of the coordinate",
        ylim=(0, 1),
        yticks=[0, 0.5, 1],
        ylabel="probability of a 1",
    )

    codes = Payload.from_bytes(Uplink(mechanism).send(update, seeded_rng(11))).codes()
    side = int(np.ceil(np.sqrt(codes.size)))
    square = np.full(side * side, np.nan)
    square[: codes.size] = codes
    axes[2].imshow(
        square.reshape(side, side),
        cmap=ListedColormap([faint, colour["imvu"]]),
        interpolation="nearest",
    )
    axes[2].set(xticks=[], yticks=[], xlabel=f"{codes.size} bits", aspect="auto")

    for name, (size, error) in measured.items():
        axes[3].plot(
            size, error, MATPLOTLIB[MECHANISMS[name].marker], color=colour[name], markersize=9
        )
        align = "left" if PLACES[name][0] > 6 else "right"
        options: dict[str, Any] = {
            "textcoords": "offset points",
            "color": colour[name],
            "fontsize": 9.5,
            "ha": align,
        }
        axes[3].annotate(NAMES[name], (size, error), PLACES[name], **options)
    axes[3].set(
        xscale="log",
        xlim=(6e3, 1e6),
        ylim=(0, 4.4),
        yticks=range(5),
        ylabel="squared error, relative",
    )
    axes[3].set(
        xlabel="bytes a client sends",
        xticks=[1e4, 1e5, 1e6],
        xticklabels=["10 kB", "100 kB", "1 MB"],
    )
    axes[3].grid(True, color=faint, linewidth=0.6, alpha=0.6)
    axes[3].set_axisbelow(True)
    return save_figure(figure, FOLDER / f"one-bit-{theme}.svg")


def _nothing() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def main() -> None:
    """Measure, then draw both."""
    update, mechanism = one_update()
    measured = {name: measure(name) for name in NAMES}
    for theme in INKS:
        print(draw(theme, update, mechanism, measured))


if __name__ == "__main__":
    main()
