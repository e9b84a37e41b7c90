"""A linear softmax problem on one device, asked about many models at once.

Idea     features go to the device once. All models of a batch meet the same cohort, so its features
         are gathered once, the scores of every model are one matrix product, and a clipped gradient
         is kept as the two short vectors whose outer product it is: nobody writes the gradients
         themselves.
Symbols  G models, K classes, m clients of a cohort, F features; rows (f, 1, 0, ..) have `width`
         entries, F + 1 rounded up to a multiple of 8. A model is a K x width matrix: weights, bias,
         unused columns.
Source   Goodfellow (2015), "Efficient per-example gradient computations"; `task/linear.py` is the
         same for one model.

Clipping factors are computed in float64 with the margin of `simulate/problem.py`. A clipped error
is rounded to float32 once and multiplied by a feature in float32 once, as in `task/linear.py`, so
every outer product lies in the ball as real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import InvalidParameter, QuietbitError, require, require_module
from quietbit.federation.simulate.problem import MARGIN, Rows
from quietbit.mechanism.ball import Norm
from quietbit.target import Unit
from quietbit_lab.cohort.means import OuterMean, Way, together
from quietbit_lab.experiment.record import Setting
from quietbit_lab.task.batch import Models
from quietbit_lab.task.linear import LinearSoftmax

__all__ = ["DeviceProblem", "fits_together", "open_device"]

torch: Any = require_module("torch", "lab[torch]")
Tensor: TypeAlias = Any
CHUNK = 4096  # examples moved at once


def open_device(name: str) -> Any:
    """Return the torch device of that name; refuse one that is not available."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameter.of("device", "cpu or cuda", name) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise QuietbitError(
            "There is no GPU that torch can use here: leave out --device, or use --device cpu."
        )
    if device.type not in ("cpu", "cuda"):
        raise InvalidParameter.of("device", "cpu or cuda", name)
    return device


def fits_together(setting: Setting) -> bool:
    """Return whether a client is protected as a whole, and takes one step."""
    return setting.plan.unit is Unit.CLIENT and setting.training.local_steps == 1


@final
class DeviceProblem(Models):
    """The data of a `LinearSoftmax` on a device; every client has exactly one example."""

    problem: LinearSoftmax
    together = 64

    def __init__(self, problem: LinearSoftmax, device: Any) -> None:
        """Refuse clients of several examples and features that are not finite; move the data."""
        self.problem = problem
        self.device = device
        dataset = problem.dataset
        self._norms: dict[Norm, Tensor] = {}
        require(
            int(problem.sizes.max()) == 1,
            "samples per client",
            int(problem.sizes.max()),
            "1 for linear models on a device",
            "leave out --device, or set samples = 1",
        )
        self.width = -(-(problem.features + 1) // 8) * 8
        members = problem.partition.members
        self._train = self._moved(dataset.train.inputs, members)
        self._test = self._moved(dataset.test.inputs, np.arange(dataset.test.count))
        self._labels = torch.from_numpy(dataset.train.labels[members]).to(self.device)
        self._test_labels = torch.from_numpy(np.asarray(dataset.test.labels)).to(self.device)
        for norm in Norm:
            lengths = problem.feature_norms(norm)[members]
            broken = int(np.count_nonzero(~np.isfinite(lengths)))
            require(broken == 0, "features", f"{broken} examples that are not finite", "finite")
            self._norms[norm] = torch.from_numpy(lengths).to(self.device)

    @property
    def classes(self) -> int:
        """K."""
        return self.problem.dataset.classes

    def share(self, norm: Norm) -> float:
        """Return the largest part of a gradient's length that one of its coordinates can have.

        The errors p - y add up to 0, so that the largest has at most half of their L1 length and
        sqrt(1 - 1/K) of L2; they are rounded, for which a thousandth is added.
        """
        largest = float((self._train.abs().amax(dim=1).double() / self._norms[norm]).amax())
        return largest * (0.5 if norm is Norm.L1 else (1 - 1 / self.classes) ** 0.5) * 1.001

    def check(self, setting: Setting) -> None:
        """Refuse a run that cannot be trained this way."""
        remedy = "leave out --device"
        unit = setting.plan.unit
        require(unit is Unit.CLIENT, "unit", unit.value, "client for linear models", remedy)
        steps = setting.training.local_steps
        require(steps == 1, "local_steps", steps, "1 for linear models on a device", remedy)

    def drawn(self, ways: Sequence[Way], cohort: int) -> OuterMean:
        """Return what draws the means of models of one kind."""
        return together(ways, cohort, self.device)

    def means(
        self,
        models: Tensor,
        clients: NDArray[np.int64],
        norm: Norm,
        clips: Tensor,
        drawn: Sequence[Any],
    ) -> Tensor:
        """Return the server's mean of a cohort for every model, (G, K, width); see `Batch`."""
        cohort = torch.from_numpy(clients.copy()).to(self.device)
        features = self.cohort(cohort)
        errors = self.clipped_errors(models, features, cohort, norm, clips)
        return torch.cat(
            [mean(errors[start:stop], features, seed) for start, stop, mean, seed in drawn]
        )

    def cohort(self, clients: Tensor) -> Tensor:
        """Return the features of a cohort, (m, width)."""
        return self._train.index_select(0, clients)

    def clipped_errors(
        self, models: Tensor, features: Tensor, clients: Tensor, norm: Norm, clips: Tensor
    ) -> Tensor:
        """Return errors p - y of every model and client at the model's clip: (G, K, m), float64."""
        count = models.shape[0]
        scores = (models.reshape(-1, self.width) @ features.T).reshape(count, self.classes, -1)
        errors = torch.softmax(scores, dim=1)
        labels = self._labels[clients].expand(count, 1, -1)
        errors.scatter_add_(1, labels, errors.new_full((1, 1, 1), -1.0).expand_as(labels))
        wide = errors.double()
        if norm is Norm.L1:
            lengths = wide.abs().sum(dim=1)
        else:
            lengths = wide.square().sum(dim=1).sqrt()
        lengths *= self._norms[norm][clients]
        bound = clips[:, None] * (1 - MARGIN)
        return wide.mul_((bound / torch.maximum(lengths, bound)).clamp_(max=1.0)[:, None, :])

    def answers(self, models: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return all models' answers to some test examples, and the labels of these."""
        scores = (models.reshape(-1, self.width) @ self._test[first:last].T).reshape(
            models.shape[0], self.classes, -1
        )
        return scores.transpose(1, 2), self._test_labels[first:last]

    def parameters(self, models: Tensor) -> list[Rows]:
        """Every model as the flat vector of `LinearSoftmax`: weights by rows, then biases."""
        size = self.problem.features
        weights = models.cpu().numpy()
        return [np.concatenate([model[:, :size].reshape(-1), model[:, size]]) for model in weights]

    def models(self, parameters: Rows, count: int) -> Tensor:
        """``count`` copies of a flat vector, on the device."""
        size = self.problem.features
        classes = self.classes
        model = np.zeros((classes, self.width), dtype=np.float32)
        model[:, :size] = parameters[: classes * size].reshape(classes, size)
        model[:, size] = parameters[classes * size :]
        return torch.from_numpy(model).to(self.device).repeat(count, 1, 1)

    def _moved(self, inputs: NDArray[Any], rows: NDArray[np.int64]) -> Tensor:
        """Move the chosen rows to the device, each followed by a one and zeros."""
        size = self.problem.features
        out = torch.zeros((rows.size, self.width), dtype=torch.float32, device=self.device)
        for start in range(0, rows.size, CHUNK):
            chosen = rows[start : start + CHUNK]
            block = np.array(inputs[chosen], dtype=np.float32).reshape(chosen.size, -1)
            out[start : start + CHUNK, :size] = torch.from_numpy(block).to(self.device)
        out[:, size] = 1
        return out
