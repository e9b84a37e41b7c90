"""A linear softmax classifier, whose gradients are outer products.

Idea     for one example with features f the gradient is (p - y) f^T, so its norm is the product of
         two short norms and clipping scales p - y alone: rows of clipped gradients are written once
         and never read before they are randomised.
Symbols  W: classes x features, b: classes; parameters are W by rows, then b. f carries an implicit
         1 for b. Both norms are multiplicative: ||a f^T|| = ||a|| ||f|| for L1 and L2.
Source   Tramèr and Boneh (ICLR 2021) for linear models on ScatterNet; Goodfellow (2015) for the
         norms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import require
from quietbit.federation.simulate.problem import (
    MAX_CLIP,
    LocalPlan,
    Rows,
    Score,
    clip_factors,
    clip_rows,
)
from quietbit.mechanism.ball import Norm
from quietbit.target import Unit
from quietbit_lab.task.dataset import Dataset, Partition

__all__ = ["LinearSoftmax"]

CHUNK = 2048  # examples scored at once


@final
@dataclass(frozen=True, slots=True, eq=False)
class LinearSoftmax:
    """Softmax regression on a data set of feature vectors (float32, any shape per example)."""

    dataset: Dataset
    partition: Partition
    start: Rows | None = None
    _norms: dict[Norm, FloatVector] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse inputs other than float32 and a start of another size; measure features once."""
        inputs = self.dataset.train.inputs
        require(inputs.dtype == np.float32, "type of the features", str(inputs.dtype), "float32")
        if self.start is not None:
            fits = self.start.shape == (self.dimension,) and bool(np.isfinite(self.start).all())
            require(fits, "start", self.start.shape, f"{self.dimension} finite numbers")
        for norm in Norm:
            self._norms[norm] = _feature_norms(inputs.reshape(inputs.shape[0], -1), norm)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.dataset.name

    @property
    def features(self) -> int:
        """Length of a feature vector."""
        return int(np.prod(self.dataset.train.inputs.shape[1:]))

    @property
    def dimension(self) -> int:
        """Classes times features, and a bias per class."""
        return self.dataset.classes * (self.features + 1)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of every client."""
        return self.partition.sizes

    def feature_norms(self, norm: Norm) -> FloatVector:
        """Norms of (f, 1) of every training example, in double precision."""
        return self._norms[norm]

    def initial(self, seed: int) -> Rows:
        """Return the given public start, or zero: the problem is convex, and needs no seed."""
        if self.start is None:
            return np.zeros(self.dimension, dtype=np.float32)
        return self.start.copy()

    def updates(
        self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        """Return clipped updates, by outer products if clients have one example and step."""
        sizes = self.sizes[clients]
        if plan.steps == 1 and int(sizes.max()) == 1:
            self._outer(
                parameters, self.partition.members[self.partition.offsets[clients]], plan, out
            )
            return
        for row, client in zip(out, clients.tolist(), strict=True):
            self._client(parameters, self.partition.of(client), plan, row)
        if plan.unit is Unit.CLIENT:
            clip_rows(out, plan.norm, plan.clip)

    def gradients(self, parameters: Rows, client: int) -> Rows:
        """Return the gradient of every sample of a client, as it is."""
        examples = self.partition.of(client)
        out = np.empty((examples.size, self.dimension), dtype=np.float32)
        self._outer(parameters, examples, LocalPlan(Norm.L2, MAX_CLIP), out)
        return out

    def evaluate(self, parameters: Rows) -> Score:
        """Accuracy and cross-entropy on the test examples."""
        test = self.dataset.test
        right = 0
        loss = 0.0
        for start in range(0, test.count, CHUNK):
            inputs = _flat(test.inputs[start : start + CHUNK])
            labels = test.labels[start : start + CHUNK]
            scores = self._scores(parameters, inputs).astype(np.float64)
            right += int((scores.argmax(axis=1) == labels).sum())
            scores -= scores.max(axis=1, keepdims=True)
            chosen = scores[np.arange(labels.size), labels]
            loss += float((np.log(np.exp(scores).sum(axis=1)) - chosen).sum())
        return Score(right / test.count, loss / test.count)

    def _outer(
        self, parameters: Rows, examples: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        inputs = _flat(self.dataset.train.inputs[examples])
        scaled = self._clipped_errors(parameters, inputs, examples, plan)
        classes = self.dataset.classes
        size = self.features
        # Writes through the view: padded rows keep their stride.
        weights = np.lib.stride_tricks.as_strided(
            out, (examples.size, classes, size), (out.strides[0], 4 * size, 4), writeable=True
        )
        np.multiply(scaled[:, :, None], inputs[:, None, :], out=weights)
        out[:, classes * size :] = scaled

    def _client(
        self, parameters: Rows, examples: NDArray[np.int64], plan: LocalPlan, row: Rows
    ) -> None:
        """Return a client's mean of clipped gradients, or the difference of its local steps."""
        inputs = _flat(self.dataset.train.inputs[examples])
        if plan.unit is Unit.SAMPLE:
            errors = self._clipped_errors(parameters, inputs, examples, plan)
            self._mean(
                errors.astype(np.float64), inputs, row
            )  # the sum's own roundings would be the sensitivity's
            clip_rows(
                row[None], plan.norm, plan.clip
            )  # the mean is shorter already, roundings aside
            return
        current = parameters
        start = parameters
        for _ in range(plan.steps):
            self._mean(self._errors(current, inputs, examples), inputs, row)
            if plan.steps > 1:
                current = current - np.float32(plan.rate) * row
        if plan.steps > 1:
            row[:] = (start - current) / np.float32(plan.rate)

    def _mean(self, errors: NDArray[Any], inputs: NDArray[np.float32], row: Rows) -> None:
        classes = self.dataset.classes
        size = self.features
        share = errors / errors.shape[0]
        np.matmul(share.T, inputs, out=row[: classes * size].reshape(classes, size))
        row[classes * size :] = share.sum(axis=0)

    def _clipped_errors(
        self,
        parameters: Rows,
        inputs: NDArray[np.float32],
        examples: NDArray[np.int64],
        plan: LocalPlan,
    ) -> NDArray[np.float32]:
        """Return p - y of each example, scaled so that the outer product fits the clip."""
        errors = self._errors(parameters, inputs, examples)
        wide = errors.astype(np.float64)
        if plan.norm is Norm.L1:
            lengths = np.abs(wide).sum(axis=1)
        else:
            lengths = np.sqrt((wide * wide).sum(axis=1))
        factors = clip_factors(lengths * self._norms[plan.norm][examples], plan.clip)
        return (wide * factors[:, None]).astype(np.float32)

    def _errors(
        self, parameters: Rows, inputs: NDArray[np.float32], examples: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        scores = self._scores(parameters, inputs)
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[np.arange(examples.size), self.dataset.train.labels[examples]] -= 1
        return scores

    def _scores(self, parameters: Rows, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        classes = self.dataset.classes
        size = self.features
        scores: NDArray[np.float32] = inputs @ parameters[: classes * size].reshape(classes, size).T
        scores += parameters[classes * size :]
        return scores


def _flat(inputs: NDArray[Any]) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = np.ascontiguousarray(inputs).reshape(inputs.shape[0], -1)
    return flat


def _feature_norms(inputs: NDArray[Any], norm: Norm) -> FloatVector:
    """Norms of (f, 1) in double precision, a chunk at a time."""
    norms = np.empty(inputs.shape[0])
    for start in range(0, norms.size, CHUNK):
        wide = inputs[start : start + CHUNK].astype(np.float64)
        part = norms[start : start + CHUNK]
        part[:] = (
            np.abs(wide).sum(axis=1) + 1
            if norm is Norm.L1
            else np.sqrt((wide * wide).sum(axis=1) + 1)
        )
    return norms
