"""Networks on one device, as a batch of runs asks for them, where samples are protected.

Idea     every network of a batch meets the same cohort: its clients' means of clipped gradients are
         the problem's own, and what the server makes of them is drawn from the law of its mechanism
         (`cohort/means.py`), without payloads.
Symbols  G models, m clients of a cohort, d parameters; models are (G, d) in float32.
Source   Guo et al. (ICML 2023), section "Sample-level DP": the experiment that this is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.federation.simulate.problem import LocalPlan, Rows
from quietbit.mechanism.ball import Norm
from quietbit.target import Trust, Unit
from quietbit_lab.cohort.means import Way
from quietbit_lab.experiment.record import Setting
from quietbit_lab.task.batch import Models
from quietbit_lab.task.module import ModuleProblem

__all__ = ["Networks", "fits_networks"]

torch: Any = require_module("torch", "lab[torch]")
Tensor: TypeAlias = Any


def fits_networks(setting: Setting) -> bool:
    """Return whether a setting is at sample level, local, one step, L2."""
    plan = setting.plan
    plain = (
        plan.trust is Trust.LOCAL
        and plan.mechanism.coordinates is None
        and plan.adaptive_clip is None
    )
    sample = (
        plan.unit is Unit.SAMPLE
        and plan.mechanism.norm is Norm.L2
        and setting.training.local_steps == 1
    )
    return plain and sample


@final
class Networks(Models):
    """The models of a batch whose ``problem`` is a `ModuleProblem`, on that problem's device."""

    together = 16

    def __init__(self, problem: ModuleProblem) -> None:
        self.problem = problem
        self.device = torch.device(problem.device)

    def check(self, setting: Setting) -> None:
        """Refuse a run that cannot be trained this way."""
        rule = "sample-level, local, of one step on an L2 ball, and of a public order"
        remedy = "leave out --device"
        require(fits_networks(setting), "settings of a batch", setting.to_json(), rule, remedy)

    def models(self, parameters: Rows, count: int) -> Tensor:
        """Return ``count`` models that start alike."""
        return torch.from_numpy(parameters).to(self.device).repeat(count, 1)

    def parameters(self, models: Tensor) -> list[Rows]:
        """Return every model's parameters."""
        return list(models.cpu().numpy())

    def drawn(self, ways: Sequence[Way], cohort: int) -> Sequence[Way]:
        """Return what draws the means of models of one kind; refuse kinds without a law."""
        known = ways[0].law is not None or ways[0].kind == "normal"
        rule = "one whose sums are normal, or of codes"
        require(known, "mechanism", ways[0].kind, rule, "leave out --device")
        return ways

    def means(
        self,
        models: Tensor,
        clients: NDArray[np.int64],
        norm: Norm,
        clips: Tensor,
        drawn: Sequence[Any],
    ) -> Tensor:
        """Return the server's mean of a cohort for every model, (G, d); see `Batch`."""
        means = []
        for start, stop, ways, seed in drawn:
            generator = torch.Generator(device=self.device).manual_seed(seed)
            for way, model, clip in zip(
                ways, models[start:stop], clips[start:stop].tolist(), strict=True
            ):
                rows = self.problem.sample_means(model, clients, LocalPlan(norm, clip, Unit.SAMPLE))
                means.append(way.rows(rows.float(), generator))
        return torch.stack(means)

    def answers(self, models: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all models' answers to some test examples, and the labels of these."""
        answers = [self.problem.answers(model, first, last) for model in models]
        return torch.stack([scores for scores, _ in answers]), answers[0][1]
