"""The demo's training: the embedded digits, three mechanisms, one guarantee."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quietbit.cli.console import Report
    from quietbit.federation.simulate import Run

__all__ = ["Trained", "curves", "train_all"]

TARGET, DELTA, ROUNDS, COHORT, CLIP = 20.0, 1e-5, 40, 350, 1.0
# (label, mechanism, step size): a sign has no size, so its steps must be smaller.
RUNS = (("Gaussian, 32 bits", "gaussian", 0.3), ("SignSGD, 1 bit", "sign", 0.1), ("I-MVU, 1 bit", "imvu", 0.3))


class Trained(NamedTuple):
    """A finished run and its name in the closing table."""

    label: str
    run: Run

    def facts(self) -> dict[str, Any]:
        """What the closing table shows, for machines."""
        guarantee = self.run.guarantee
        return {
            "label": self.label,
            "accuracy": self.run.points[-1].score.accuracy,
            "epsilon_upper": guarantee.epsilon_upper if guarantee else None,
            "guarantee": guarantee.sentence() if guarantee else None,
            "bytes_per_client_and_round": self.run.bytes_per_client,
        }


def train_all(report: Report) -> list[Trained]:
    """Train every mechanism on the same cohorts, each calibrated to the same guarantee."""
    from quietbit.federation.settings import Settings
    from quietbit.federation.simulate import Point, simulate
    from quietbit.task.registry import TaskSpec, build_task

    problem, seed = build_task(TaskSpec("digits")), secrets.randbits(32)
    found: list[Trained] = []
    for place, (label, mechanism, step) in enumerate(RUNS):
        settings = Settings(
            mechanism,
            lr=step,
            rounds=ROUNDS,
            cohort=COHORT,
            clip=CLIP,
            delta=DELTA,
            target_epsilon=TARGET,
            evaluate_every=2,
            seed=seed,
        )

        def show(number: int, point: Point | None, place: int = place, label: str = label) -> None:
            if number in (1, ROUNDS) or number % 10 == 0:
                seen = f", {100 * point.score.accuracy:.0f} % right" if point is not None else ""
                report((place + number / ROUNDS) / len(RUNS), f"{label}, round {number} of {ROUNDS}{seen}")

        found.append(Trained(label, simulate(problem, settings, progress=show)))
    return found


def curves(trained: list[Trained]) -> dict[str, list[tuple[int, float]]]:
    """Rounds and accuracies of every run, for the plot."""
    return {label: [(point.round, point.score.accuracy) for point in run.points] for label, run in trained}
