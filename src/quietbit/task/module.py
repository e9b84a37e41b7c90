"""Any torch module as a problem: per-sample gradients by torch.func, clipped where the plan says.

Idea     parameters travel as one flat vector; gradients of single samples come from vmap over grad, a chunk of
         samples at a time, so memory depends on the chunk and not on the client.
Source   PyTorch's functional transforms; Abadi et al. (2016) for clipping per sample.

Refused: modules with buffers that training changes (batch statistics mix samples, and no account covers it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require_module
from quietbit.federation.problem import LocalPlan, Rows, Score, clip_factors, clip_rows
from quietbit.mechanism.clipping import Norm
from quietbit.privacy.guarantee import Unit
from quietbit.task.dataset import Dataset, Partition

__all__ = ["ModuleProblem"]

CHUNK = 64  # samples whose gradients exist at once
SCORED = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModuleProblem:
    """A classifier built by ``make`` and trained with cross-entropy.

    ``prepare`` turns a batch of stored inputs into what the module takes; by default uint8 images become
    floats in [0, 1] less one half, with a colour axis. ``device`` is where torch works.
    """

    dataset: Dataset
    partition: Partition
    make: Callable[[], Any]
    prepare: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
    device: str = "cpu"
    _module: Any = field(init=False, repr=False)
    _shapes: list[tuple[str, tuple[int, ...]]] = field(init=False, repr=False)
    _lock: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Build the module once to learn its shapes."""
        torch = require_module("torch", "tasks")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make().to(self.device)
        names = [name for name, _ in module.named_buffers()]
        if names:
            raise InvalidParameter(f"model must have no buffers (batch statistics mix samples), got {names[0]!r}.")
        put = object.__setattr__
        put(self, "_module", module)
        put(self, "_shapes", [(name, tuple(p.shape)) for name, p in module.named_parameters()])
        put(self, "_lock", Lock())

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.dataset.name

    @property
    def dimension(self) -> int:
        """Parameters of the module."""
        return sum(int(np.prod(shape)) for _, shape in self._shapes)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of every client."""
        return self.partition.sizes

    def initial(self, seed: int) -> Rows:
        """The module's own initialisation under this seed; torch's global state is left alone."""
        torch = require_module("torch", "tasks")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            module = self.make()
        flat: Rows = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy().astype(np.float32)
        return flat

    def updates(self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows) -> None:
        """Clipped updates, one client after the other; torch keeps the processors busy itself."""
        with self._lock:
            for row, client in zip(out, clients.tolist(), strict=True):
                self._client(parameters, self.partition.of(client), plan, row)
        clip_rows(out, plan.norm, plan.clip)  # sample-level means are shorter already, roundings aside

    def evaluate(self, parameters: Rows) -> Score:
        """Accuracy and cross-entropy on the test samples."""
        torch = require_module("torch", "tasks")
        test, right, loss = self.dataset.test, 0, 0.0
        weights = self._unflatten(parameters)
        with torch.no_grad():
            for start in range(0, test.count, SCORED):
                inputs, labels = self._batch(test.inputs[start : start + SCORED], test.labels[start : start + SCORED])
                scores = torch.func.functional_call(self._module, weights, (inputs,))
                right += int((scores.argmax(dim=1) == labels).sum())
                loss += float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum"))
        return Score(right / test.count, loss / test.count)

    def sample_gradients(self, parameters: Rows, examples: NDArray[np.int64]) -> Rows:
        """One flat gradient per training sample."""
        torch = require_module("torch", "tasks")
        train = self.dataset.train
        inputs, labels = self._batch(train.inputs[examples], train.labels[examples])
        gradients = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0))(
            self._unflatten(parameters), inputs, labels
        )
        flat: Rows = torch.cat([gradients[name].flatten(1) for name, _ in self._shapes], dim=1).cpu().numpy()
        return flat

    def _client(self, parameters: Rows, examples: NDArray[np.int64], plan: LocalPlan, row: Rows) -> None:
        if plan.unit is Unit.SAMPLE:
            total = np.zeros(row.size)
            for start in range(0, examples.size, CHUNK):
                rows = self.sample_gradients(parameters, examples[start : start + CHUNK]).astype(np.float64)
                lengths = np.abs(rows).sum(axis=1) if plan.norm is Norm.L1 else np.sqrt((rows * rows).sum(axis=1))
                total += clip_factors(lengths, plan.clip) @ rows
            row[:] = total / examples.size
            return
        here = parameters
        for _ in range(plan.steps):
            row[:] = self._gradient(here, examples)
            if plan.steps > 1:
                here = here - np.float32(plan.rate) * row
        if plan.steps > 1:
            row[:] = (parameters - here) / np.float32(plan.rate)

    def _gradient(self, parameters: Rows, examples: NDArray[np.int64]) -> Rows:
        torch = require_module("torch", "tasks")
        train = self.dataset.train
        inputs, labels = self._batch(train.inputs[examples], train.labels[examples])
        weights = {name: value.requires_grad_() for name, value in self._unflatten(parameters).items()}
        scores = torch.func.functional_call(self._module, weights, (inputs,))
        loss = torch.nn.functional.cross_entropy(scores, labels)
        parts = torch.autograd.grad(loss, list(weights.values()))
        flat: Rows = torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
        return flat

    def _loss(self, weights: Any, one_input: Any, label: Any) -> Any:
        torch = require_module("torch", "tasks")
        scores = torch.func.functional_call(self._module, weights, (one_input[None],))
        return torch.nn.functional.cross_entropy(scores, label[None])

    def _unflatten(self, parameters: Rows) -> dict[str, Any]:
        torch = require_module("torch", "tasks")
        flat = torch.from_numpy(np.array(parameters)).to(self.device)
        found, start = {}, 0
        for name, shape in self._shapes:
            stop = start + int(np.prod(shape))
            found[name] = flat[start:stop].reshape(shape)
            start = stop
        return found

    def _batch(self, inputs: NDArray[Any], labels: NDArray[np.int64]) -> tuple[Any, Any]:
        torch = require_module("torch", "tasks")
        ready = (self.prepare or _images)(inputs)
        return torch.from_numpy(ready).to(self.device), torch.from_numpy(labels).to(self.device)


def _images(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """uint8 images as (count, colours, height, width) floats; floats as they are."""
    if inputs.dtype != np.uint8:
        return np.ascontiguousarray(inputs, dtype=np.float32)
    planes = inputs[:, None] if inputs.ndim == 3 else inputs.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(planes, dtype=np.float32) / np.float32(255) - np.float32(0.5)
