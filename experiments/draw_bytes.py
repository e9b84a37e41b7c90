"""The picture of "small both ways": bytes that one client sends and gets over a whole training.

Idea     a WideResNet-28-10 (36.5 million parameters), 90 rounds, a client that takes part in all.
         Sizes are those of the code; FedKSeed's are published: 18 kB per round, both ways together,
         without privacy (Qin et al., 2024).

    python experiments/draw_bytes.py docs/images/bytes-both-ways.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from quietbit.wire.downlink import HEAD
from quietbit_lab.plot.figure import blank_figure, looks, plain_axes, save_figure

PARAMETERS, ROUNDS, KEEP = 36_500_000, 90, 1024
MODEL, BROADCAST = 4 * PARAMETERS, HEAD.size + 4 * KEEP
WAYS = {  # up and down, over all rounds
    "FedAvg": (ROUNDS * MODEL, ROUNDS * MODEL),
    "one bit per parameter": (ROUNDS * (64 + PARAMETERS // 8), ROUNDS * MODEL),
    "quietbit, model down": (ROUNDS * 80, ROUNDS * MODEL),
    "quietbit, replayed, model once": (ROUNDS * 72, MODEL + (ROUNDS - 1) * BROADCAST),
    "quietbit, replayed, start in the app": (ROUNDS * 72, (ROUNDS - 1) * BROADCAST),
}
FEDKSEED = ROUNDS * 18_000


def main(out: Path) -> None:
    """Draw two bars for every way and print the table."""
    figure = blank_figure(9.0, 3.6)
    title = f"bytes of one client, {PARAMETERS / 1e6:g} million parameters, {ROUNDS} rounds"
    axes = plain_axes(figure.add_subplot(1, 1, 1), title, "bytes, log scale", "")
    up, down = (look.line["color"] for look in looks(["up", "down"]))
    for place, (name, (sent, got)) in enumerate(WAYS.items()):
        axes.barh(-place + 0.2, sent, 0.36, color=up, label="up" if place == 0 else None)
        axes.barh(-place - 0.2, got, 0.36, color=down, label="down" if place == 0 else None)
        print(f"| {name} | {sent:,} | {got:,} |")
    axes.barh(-len(WAYS), FEDKSEED, 0.36, color="0.6", label="both together")
    axes.set_xscale("log")
    axes.set_xlim(1e3, 1e11)
    axes.set_yticks(
        [-place for place in range(len(WAYS) + 1)], [*WAYS, "FedKSeed, published (no privacy)"]
    )
    axes.legend(loc="lower right", frameon=False)
    save_figure(figure, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
