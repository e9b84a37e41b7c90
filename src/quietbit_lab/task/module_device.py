"""Networks of one shape on one device, asked about many models at once, where samples are protected.

Idea     `StackedLayers` gives every client's mean of clipped gradients for a few models at a time; what the server
         makes of a cohort is drawn from the law of each model's mechanism (`cohort/means.py`). `batch.py` trains them.
Symbols  G models, m clients of a cohort, d parameters; models are (G, d) in float32.
Source   Guo et al. (ICML 2023), section "Sample-level DP": the experiment that this is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
from attrs import Factory, field, frozen
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.privacy.guarantee import Trust, Unit
from quietbit.simulate.problem import Rows
from quietbit_lab.cohort.means import Way
from quietbit_lab.experiment.record import Setting
from quietbit_lab.task.batch import Models, exact_float32
from quietbit_lab.task.module import ModuleProblem, StoredExamples
from quietbit_lab.task.module_stack import StackedLayers

__all__ = ["StackedProblem", "fits_stacked"]

torch: Any = require_module("torch", "lab")
Tensor: TypeAlias = Any
TOGETHER = {"cuda": 16, "cpu": 2}  # models whose gradients exist at once


def fits_stacked(setting: Setting) -> bool:
    """Return whether samples are protected, locally, in one step on an L2 ball, and in a public order."""
    plan = setting.plan
    plain = plan.trust is Trust.LOCAL and plan.keep is None and plan.clip_quantile is None
    public = plan.participation != "secret-order"
    sample = plan.unit is Unit.SAMPLE and plan.norm is Norm.L2 and setting.training.local_steps == 1
    return plain and public and sample


@final
@frozen(eq=False)
class StackedProblem(Models):
    """The data of a `ModuleProblem` on a device, for models stacked into one tensor."""

    problem: ModuleProblem
    device: Any
    together: int = field(init=False, default=Factory(lambda self: TOGETHER[self.device.type], takes_self=True))
    _layers: StackedLayers = field(init=False, repr=False)
    _train: StoredExamples = field(init=False, repr=False)
    _test: StoredExamples = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Bring the data to the device."""
        problem, put = self.problem, object.__setattr__
        put(self, "_layers", StackedLayers.of(problem.make()))
        for name, examples in (("_train", problem.dataset.train), ("_test", problem.dataset.test)):
            put(self, name, StoredExamples.of(examples, str(self.device), problem.prepare))

    def check(self, setting: Setting) -> None:
        """Refuse a run that cannot be trained this way."""
        rule = "sample-level, local, of one step on an L2 ball, and of a public order"
        require(fits_stacked(setting), "settings of a batch", setting.to_json(), rule)

    def working(self) -> Any:
        """Return the context in which models are trained."""
        return exact_float32()

    def share(self, norm: Norm) -> float:
        """Return the largest part of an update's length that one coordinate can have: all of it."""
        return 1.0

    def models(self, parameters: Rows, count: int) -> Tensor:
        """Return ``count`` models that start alike."""
        return torch.from_numpy(parameters).to(self.device).repeat(count, 1)

    def parameters(self, models: Tensor) -> list[Rows]:
        """Return every model's parameters."""
        return list(models.cpu().numpy())

    def drawn(self, ways: Sequence[Way], cohort: int) -> Sequence[Way]:
        """Return what draws the means of models of one kind; kinds without a law for rows are refused."""
        fine = ways[0].law is not None or ways[0].kind == "normal"
        require(fine, "mechanism", ways[0].kind, "one whose sums are normal, or of codes, for networks")
        return ways

    def means(
        self,
        models: Tensor,
        clients: NDArray[np.int64],
        cohort: Tensor,
        norm: Norm,
        clips: Tensor,
        drawn: Sequence[Any],
    ) -> Tensor:
        """Return the server's mean of a cohort for every model, (G, d); see `Batch`."""
        kept = self.together
        examples = np.concatenate([self.problem.partition.of(client) for client in clients.tolist()])
        inputs, labels = self._train.batch(examples)
        sizes, found = self.problem.sizes[clients].tolist(), []
        for start, stop, ways, seed in drawn:
            generator = torch.Generator(device=self.device).manual_seed(seed)
            for first in range(start, stop, kept):
                some = slice(first, min(first + kept, stop))
                rows, _ = self._layers.clipped_means(models[some], inputs, labels, sizes, clips[some])
                pairs = zip(ways[first - start :], rows, strict=False)
                found += [way.rows(row, generator) for way, row in pairs]
        return torch.stack(found)

    def answers(self, models: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all models' answers to some test examples, and the labels of these."""
        inputs, labels = self._test.batch(np.arange(first, last))
        return self._layers.scores(models, inputs), labels
