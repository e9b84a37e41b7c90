"""Any torch module as a problem: clipped updates of its clients, on a CPU or a GPU.

Idea     parameters travel as one flat vector. Gradients of single samples come from `module_gradients`, a piece of
         the cohort's samples at a time; their norms, clip factors and sums are taken in float64 where torch
         works, so that one row per client is all that comes back, and memory depends on the piece alone.
Symbols  a piece = samples whose gradients exist at once; g_k, f_k = gradient and clip factor of sample k.
Source   Abadi et al. (2016) for clipping per sample; Guo et al. (ICML 2023), section "Sample-level DP".

Refused: modules with buffers that training changes (batch statistics mix samples, and no account covers it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import InvalidParameter, require, require_module
from quietbit.mechanism.ball import Norm
from quietbit.plan.problem import LocalPlan, Rows, Score, clip_factors, clip_rows
from quietbit.privacy.guarantee import Unit
from quietbit_lab.task.dataset import Dataset, Partition
from quietbit_lab.task.module_data import Prepare, StoredExamples
from quietbit_lab.task.module_gradients import SampleGradients, sample_gradients_of

__all__ = ["ModuleProblem"]

CPU_PIECE, GPU_PIECE = 64, 1024  # samples
CPU_NUMBERS, GPU_NUMBERS = 1 << 24, 1 << 28  # entries of their gradients, where the model is large
SCORED = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModuleProblem:
    """A classifier built by ``make`` and trained with cross-entropy.

    ``prepare`` turns a batch of stored inputs into what the module takes; by default uint8 images become
    floats in [0, 1] with a colour axis. ``device`` is where torch works and, on a GPU, where
    the data stay.
    """

    dataset: Dataset
    partition: Partition
    make: Callable[[], Any]
    prepare: Prepare | None = None
    device: str = "cpu"
    _gradients: SampleGradients = field(init=False, repr=False)
    _shapes: list[tuple[str, tuple[int, ...]]] = field(init=False, repr=False)
    _train: StoredExamples = field(init=False, repr=False)
    _test: StoredExamples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Build the module once to learn its shapes, and bring the data where they are used."""
        torch = require_module("torch", "lab")
        there = not self.device.startswith("cuda") or torch.cuda.is_available()
        require(there, "device", self.device, "cpu on a machine without an NVIDIA GPU that torch can use")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make().to(self.device)
        names = [name for name, _ in module.named_buffers()]
        if names:
            raise InvalidParameter(f"model must have no buffers (batch statistics mix samples), got {names[0]!r}.")
        put = object.__setattr__
        put(self, "_gradients", sample_gradients_of(module))
        put(self, "_shapes", [(name, tuple(p.shape)) for name, p in module.named_parameters()])
        put(self, "_train", StoredExamples.of(self.dataset.train, self.device, self.prepare))
        put(self, "_test", StoredExamples.of(self.dataset.test, self.device, self.prepare))

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
        torch = require_module("torch", "lab")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            module = self.make()
        flat: Rows = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy().astype(np.float32)
        return flat

    def updates(self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows) -> None:
        """Clipped updates of these clients."""
        single = plan.steps == 1 and bool((self.sizes[clients] == 1).all())
        if plan.unit is Unit.SAMPLE or single:
            self._means(parameters, clients, plan, out)
        else:
            for row, client in zip(out, clients.tolist(), strict=True):
                row[:] = self._steps(parameters, self.partition.of(client), plan)
        clip_rows(out, plan.norm, plan.clip)  # sample-level means are shorter already, roundings aside

    def evaluate(self, parameters: Rows) -> Score:
        """Accuracy and cross-entropy on the test samples."""
        torch = require_module("torch", "lab")
        count, weights = self.dataset.test.count, self._unflatten(parameters)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for start in range(0, count, SCORED):
                inputs, labels = self._test.batch(np.arange(start, min(start + SCORED, count)))
                scores = self._gradients.scores(weights, inputs)
                right += (scores.argmax(dim=1) == labels).sum()
                loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").double()
        return Score(int(right) / count, float(loss) / count)

    def sample_gradients(self, parameters: Rows, examples: NDArray[np.int64]) -> Rows:
        """One flat gradient per training sample."""
        torch = require_module("torch", "lab")
        parts = self._gradients(self._unflatten(parameters), *self._train.batch(examples))
        flat: Rows = torch.cat(parts, dim=1).cpu().numpy()
        return flat

    def _means(self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows) -> None:
        """Means of the samples' gradients, each clipped first if samples are what is protected."""
        torch = require_module("torch", "lab")
        weights = self._unflatten(parameters)
        total = torch.zeros((clients.size, self.dimension), dtype=torch.float64, device=self.device)
        for examples, owners in self._pieces(clients):
            parts = self._gradients(weights, *self._train.batch(examples))
            factors = np.ones(examples.size)
            if plan.unit is Unit.SAMPLE:
                factors = clip_factors(_lengths(parts, plan.norm), plan.clip)
            # Row c of the spread holds the factors of client c's samples: the sums are one product.
            first, last = int(owners[0]), int(owners[-1]) + 1
            spread = np.zeros((last - first, examples.size))
            spread[owners - first, np.arange(examples.size)] = factors
            _add_products(total[first:last], torch.from_numpy(spread).to(self.device), parts)
        out[:] = total.cpu().numpy() / self.sizes[clients][:, None]

    def _pieces(self, clients: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The clients' samples and whose they are (places in ``clients``), a piece at a time.

        On a CPU no piece crosses clients of several samples, so that no bit depends on who shares a chunk.
        """
        gpu = self.device != "cpu"
        most, numbers = (GPU_PIECE, GPU_NUMBERS) if gpu else (CPU_PIECE, CPU_NUMBERS)
        most = max(1, min(most, numbers // self.dimension))
        together = gpu or bool((self.sizes[clients] == 1).all())
        groups = [np.arange(clients.size)] if together else [np.array([place]) for place in range(clients.size)]
        for group in groups:
            examples = np.concatenate([self.partition.of(int(clients[place])) for place in group])
            owners = np.repeat(group, self.sizes[clients[group]])
            for start in range(0, examples.size, most):
                yield examples[start : start + most], owners[start : start + most]

    def _steps(self, parameters: Rows, examples: NDArray[np.int64], plan: LocalPlan) -> Rows:
        """Full-batch gradient steps of one client, as (start - end) / rate."""
        torch = require_module("torch", "lab")
        start = self._unflatten(parameters)
        here, slopes = start, self._slopes(start, examples)
        if plan.steps > 1:
            for _ in range(plan.steps - 1):
                here = {name: value - plan.rate * slopes[name] for name, value in here.items()}
                slopes = self._slopes(here, examples)
            # What the earlier steps moved, and the last step's gradient as it is.
            slopes = {name: (start[name] - here[name]) / plan.rate + slopes[name] for name in here}
        flat: Rows = torch.cat([slope.reshape(-1) for slope in slopes.values()]).cpu().numpy()
        return flat

    def _slopes(self, weights: dict[str, Any], examples: NDArray[np.int64]) -> dict[str, Any]:
        """The gradient of a client's mean loss."""
        torch = require_module("torch", "lab")
        chosen = {name: value.detach().requires_grad_() for name, value in weights.items()}
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for start in range(0, examples.size, SCORED):
            inputs, labels = self._train.batch(examples[start : start + SCORED])
            scores = self._gradients.scores(chosen, inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / examples.size
            for name, part in zip(chosen, torch.autograd.grad(loss, list(chosen.values())), strict=True):
                total[name] += part
        return total

    def _unflatten(self, parameters: Rows) -> dict[str, Any]:
        """Parameter tensors by name, kernels of convolutions with the channels last in memory."""
        torch = require_module("torch", "lab")
        flat = torch.from_numpy(np.array(parameters)).to(self.device)
        found, start = {}, 0
        for name, shape in self._shapes:
            stop = start + int(np.prod(shape))
            found[name] = flat[start:stop].reshape(shape)
            if len(shape) == 4:  # twice as fast on a CPU, where pooling is then vectorised
                found[name] = found[name].to(memory_format=torch.channels_last)
            start = stop
        return found


def _lengths(parts: list[Any], norm: Norm) -> NDArray[np.float64]:
    """The norm of every sample's gradient, over all parameter tensors, in float64."""
    torch = require_module("torch", "lab")
    order = 1 if norm is Norm.L1 else 2
    each = [torch.linalg.vector_norm(part, order, dim=1, dtype=torch.float64) for part in parts]
    lengths: NDArray[np.float64] = torch.linalg.vector_norm(torch.stack(each), order, dim=0).cpu().numpy()
    return lengths


def _add_products(total: Any, spread: Any, parts: list[Any]) -> None:
    """Add spread @ parts to the columns of the total, in float64."""
    start = 0
    for part in parts:
        stop = start + part.shape[1]
        total[:, start:stop] += spread @ part.double()
        start = stop
