"""The pictures of Figures 2, 4, 5 and 6, from the results that are kept: no training, a minute.

python experiments/draw_figures.py docs/images/figures
"""

from __future__ import annotations

import sys
from pathlib import Path

from quietbit_lab.experiment.packed import read_results
from quietbit_lab.plot.figure import save_figure
from quietbit_lab.report.plots import plot_frontier

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "fig2-mnist": "MNIST: one bit per parameter trains like 32-bit Gaussian noise",
    "fig2-cifar10": "CIFAR-10: one-bit I-MVU lies on the Gaussian's line, above SignSGD and MVU",
    "fig4-mnist": "MNIST, L1 balls: four bits follow Laplace; SignSGD leads from epsilon 20 on",
    "fig4-cifar10": "CIFAR-10, L1 balls: the same order, and little is learnt below epsilon 100",
    "fig5-femnist": "FEMNIST, network: one-bit I-MVU and the Gaussian differ less than seeds do",
    "fig5-femnist-linear": "FEMNIST, linear: one-bit I-MVU is within two points of the Gaussian",
    "fig6-femnist": "FEMNIST, network: more than one bit per parameter does not help",
    "fig6-femnist-linear": "FEMNIST, linear model: each further bit costs a little accuracy",
}


def main(out: Path) -> None:
    """Draw every figure whose results are kept."""
    for name, title in TITLES.items():
        results = read_results(RESULTS / f"{name}.jsonl.gz")
        save_figure(plot_frontier(results, title), out / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
