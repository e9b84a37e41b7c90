"""Any torch module as a problem: clipped updates of its clients, on a CPU or a GPU.

Idea     parameters travel as one flat vector. Gradients of single samples come from
         `quietbit.gradients`, a piece of the cohort's samples at a time; their norms, clip factors
         and sums are taken in float64 where torch works, so that one row per client is all that
         comes back, and memory depends on the piece alone.
Symbols  a piece = samples whose gradients exist at once; g_k, f_k = gradient and clip factor of
         sample k.
Source   Abadi et al. (2016) for clipping per sample; Guo et al. (ICML 2023), section "Sample-level
         DP".

Examples are drawn by index: on a GPU the inputs are moved once, in the type they are stored in
(bytes for images), and a batch is picked and scaled there; on a CPU they stay where they are, a
file mapped into memory included. The two networks at the end are the paper's: tanh where gradients
are clipped, because its values and gradients stay bounded (Papernot et al., AAAI 2021), with the
layers of Tramèr and Boneh (ICLR 2021) for MNIST and, for FEMNIST, a 4-layer network of 46k
parameters.

Refused: modules with buffers that training changes (batch statistics mix samples, and no account
covers it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import local
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit.federation.simulate.problem import MARGIN, LocalPlan, Rows, Score, clip_rows
from quietbit.gradients import SampleGradients
from quietbit.gradients.rows import LANES
from quietbit.target import Unit
from quietbit_lab.task.dataset import Dataset, Examples, Partition

__all__ = ["ModuleProblem", "StoredExamples", "femnist_network", "mnist_network"]

torch: Any = require_module("torch", "lab[torch]")
Prepare: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float32]]
# Samples of a piece, and entries of their gradients where the model is large.
CPU_PIECE = 64
GPU_PIECE = 1024
CPU_NUMBERS = 1 << 24
GPU_NUMBERS = 1 << 28
SCORED = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredExamples:
    """Inputs and labels of one half of a data set, on the device where they are used."""

    inputs: Any
    labels: Any
    device: str
    prepare: Prepare | None

    @classmethod
    def of(cls, examples: Examples, device: str, prepare: Prepare | None) -> StoredExamples:
        """Return examples on this device; a user's ``prepare`` works on arrays, which stay."""
        if device == "cpu" or prepare is not None:
            return cls(examples.inputs, examples.labels, device, prepare)
        inputs = torch.from_numpy(np.array(examples.inputs)).to(device)
        return cls(inputs, torch.from_numpy(np.array(examples.labels)).to(device), device, None)

    def batch(self, chosen: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the inputs, ready for the module, and the labels of the chosen examples."""
        if isinstance(self.inputs, np.ndarray):
            if self.prepare is None:
                some = self.inputs[chosen]
            else:
                some = self.prepare(self.inputs[chosen])
            inputs = torch.from_numpy(some).to(self.device)
            labels = torch.from_numpy(self.labels[chosen])
            return (inputs if self.prepare is not None else _images(inputs)), labels.to(self.device)
        places = torch.from_numpy(chosen).to(self.device)
        return _images(self.inputs[places]), self.labels[places]


def _images(inputs: Any) -> Any:
    """uint8 images as (count, colours, height, width) floats in [0, 1]; floats as they are."""
    if inputs.dtype != torch.uint8:
        return inputs.float()
    if inputs.ndim == 3:
        planes = inputs[:, None]
    else:
        planes = inputs.permute(0, 3, 1, 2)
    return planes.float().contiguous() / 255


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModuleProblem:
    """A classifier built by ``make`` and trained with cross-entropy.

    ``prepare`` turns a batch of stored inputs into what the module takes; by default uint8 images
    become floats in [0, 1] with a colour axis. ``device`` is where torch works and, on a GPU, where
    the data stay.
    """

    dataset: Dataset
    partition: Partition
    make: Callable[[], Any]
    prepare: Prepare | None = None
    device: str = "cpu"
    _own: local = field(init=False, default_factory=local, repr=False)
    _sizes: list[int] = field(init=False, repr=False)
    _train: StoredExamples = field(init=False, repr=False)
    _test: StoredExamples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Build the module once to learn its shapes, and bring the data where they are used."""
        available = not self.device.startswith("cuda") or torch.cuda.is_available()
        require(
            available,
            "device",
            self.device,
            "cpu on this machine",
            "torch finds no NVIDIA GPU here",
        )
        module = self._built(0)
        names = [name for name, _ in module.named_buffers()]
        require(
            not names,
            "buffers of the model",
            names,
            "none",
            "batch statistics mix samples: use group or layer normalisation",
        )
        put = object.__setattr__
        put(self, "_sizes", [part.numel() for part in module.parameters()])
        put(self, "_train", StoredExamples.of(self.dataset.train, self.device, self.prepare))
        put(self, "_test", StoredExamples.of(self.dataset.test, self.device, self.prepare))

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.dataset.name

    @property
    def dimension(self) -> int:
        """Parameters of the module."""
        return sum(self._sizes)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of every client."""
        return self.partition.sizes

    def initial(self, seed: int) -> Rows:
        """Return the module's initial parameters under this seed; torch's global state is kept."""
        flat: Rows = torch.cat(
            [part.detach().reshape(-1) for part in self._built(seed).parameters()]
        ).numpy()
        return flat.astype(np.float32)

    def updates(
        self, parameters: Rows, clients: NDArray[np.int64], plan: LocalPlan, out: Rows
    ) -> None:
        """Clipped updates of these clients."""
        single = plan.steps == 1 and self._one_each(self.sizes[clients])
        if plan.unit is Unit.SAMPLE or single:
            out[:] = self.sample_means(parameters, clients, plan).cpu().numpy()
        else:
            for row, client in zip(out, clients.tolist(), strict=True):
                row[:] = self._steps(parameters, self.partition.of(client), plan)
        clip_rows(
            out, plan.norm, plan.clip
        )  # sample-level means are shorter already, roundings aside

    def evaluate(self, parameters: Rows) -> Score:
        """Accuracy and cross-entropy on the test samples."""
        count = self.dataset.test.count
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, count, SCORED):
            scores, labels = self.answers(parameters, start, min(start + SCORED, count))
            right += (scores.argmax(dim=1) == labels).sum()
            loss += torch.nn.functional.cross_entropy(scores, labels, reduction="sum").double()
        return Score(int(right) / count, float(loss) / count)

    def answers(self, parameters: Any, first: int, last: int) -> tuple[Any, Any]:
        """Return the module's outputs for some test samples, and the labels of these."""
        inputs, labels = self._test.batch(np.arange(first, last))
        with torch.no_grad():
            return self._module(parameters)(inputs), labels

    def gradients(self, parameters: Rows, client: int) -> Rows:
        """Return the gradient of every sample of a client, as it is."""
        flat: Rows = self._each(self._module(parameters), self.partition.of(client)).cpu().numpy()
        return flat

    def _each(self, module: Any, examples: NDArray[np.int64]) -> Any:
        """Return a row for each sample: its gradient, parameters one after the other."""
        batch = self._train.batch(examples)
        if not hasattr(self._own, "gradients"):
            # A tile is no larger than a client, whose samples fill it alone on a CPU.
            if self._one_each(self.sizes):
                largest = CPU_PIECE
            else:
                largest = int(self.sizes.max())
            if self.device == "cpu":
                tile = min(CPU_PIECE, -(-largest // LANES) * LANES)
            else:
                tile = None
            self._own.gradients = SampleGradients(
                module, torch.nn.CrossEntropyLoss(), batch, tile=tile
            )
        return self._own.gradients(batch)

    @staticmethod
    def _one_each(sizes: NDArray[np.int64]) -> bool:
        return bool((sizes == 1).all())

    def sample_means(self, parameters: Any, clients: NDArray[np.int64], plan: LocalPlan) -> Any:
        """Return every client's mean gradient; each sample's is clipped at sample level.

        The rows are float64 and on the device; a gradient that is not finite makes its client's row
        NaN.
        """
        module = self._module(parameters)
        bound = plan.clip * (1 - MARGIN)
        total = torch.zeros((clients.size, self.dimension), dtype=torch.float64, device=self.device)
        for examples, owners in self._pieces(clients):
            rows = self._each(module, examples).double()
            if plan.unit is Unit.SAMPLE:
                lengths = torch.linalg.vector_norm(rows, plan.norm.order, dim=1, keepdim=True)
                rows *= bound / lengths.clamp(min=bound)
            # Row c of the spread has ones for client c's samples: the sums are one product.
            first = int(owners[0])
            last = int(owners[-1]) + 1
            spread = torch.from_numpy(
                (owners == np.arange(first, last)[:, None]).astype(np.float64)
            )
            total[first:last] += spread.to(self.device) @ rows
        return total / torch.from_numpy(self.sizes[clients]).to(self.device)[:, None]

    def _pieces(
        self, clients: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the clients' samples and whose they are (places in ``clients``), a piece at a time.

        On a CPU no piece crosses clients of several samples, so that no bit depends on who shares a
        chunk.
        """
        gpu = self.device != "cpu"
        most, numbers = (GPU_PIECE, GPU_NUMBERS) if gpu else (CPU_PIECE, CPU_NUMBERS)
        most = max(1, min(most, numbers // self.dimension))
        together = gpu or self._one_each(self.sizes[clients])
        if together:
            groups = [np.arange(clients.size)]
        else:
            groups = [np.array([place]) for place in range(clients.size)]
        for group in groups:
            examples = np.concatenate([self.partition.of(int(clients[place])) for place in group])
            owners = np.repeat(group, self.sizes[clients[group]])
            for start in range(0, examples.size, most):
                yield examples[start : start + most], owners[start : start + most]

    def _steps(self, parameters: Rows, examples: NDArray[np.int64], plan: LocalPlan) -> Rows:
        """Full-batch gradient steps of one client, as (start - end) / rate."""
        current = parameters
        slope = self._slope(parameters, examples)
        for _ in range(plan.steps - 1):
            current = current - np.float32(plan.rate) * slope
            slope = self._slope(current, examples)
        # What the earlier steps moved, and the last step's gradient as it is.
        if plan.steps == 1:
            return slope
        return (parameters - current) / np.float32(plan.rate) + slope

    def _slope(self, parameters: Rows, examples: NDArray[np.int64]) -> Rows:
        """Return the gradient of a client's mean loss."""
        module = self._module(parameters)
        total = torch.zeros(self.dimension, device=self.device)
        for start in range(0, examples.size, SCORED):
            inputs, labels = self._train.batch(examples[start : start + SCORED])
            loss = (
                torch.nn.functional.cross_entropy(module(inputs), labels, reduction="sum")
                / examples.size
            )
            total += torch.cat(
                [part.reshape(-1) for part in torch.autograd.grad(loss, list(module.parameters()))]
            )
        flat: Rows = total.cpu().numpy()
        return flat

    def _built(self, seed: int) -> Any:
        """Build a module with its initialisation under this seed; keep torch's global state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            return self.make()

    def _module(self, parameters: Any) -> Any:
        """Return this thread's module, with these parameters and channels last in memory.

        That is twice as fast on a CPU, where pooling is then vectorised.
        """
        if not hasattr(self._own, "module"):
            self._own.module = self._built(0).to(self.device, memory_format=torch.channels_last)
        if isinstance(parameters, np.ndarray):
            given = torch.from_numpy(np.array(parameters))
        else:
            given = parameters
        module = self._own.module
        flat = given.to(self.device)
        with torch.no_grad():
            for part, values in zip(module.parameters(), flat.split(self._sizes), strict=True):
                part.copy_(values.reshape(part.shape))
        return module


def mnist_network() -> Any:
    """Two convolutions and two dense layers with tanh: 26,010 parameters, 28 x 28 to 10 classes."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def femnist_network() -> Any:
    """Four convolutions of 32 channels and a dense layer: 45,982 parameters, 62 classes.

    Weights start with the variance of He et al. (2015), which keeps signals alive through the
    rectifiers: from torch's own start nothing was learnt in 160 rounds.
    """
    nn = torch.nn
    layers: list[Any] = []
    for place, channels in enumerate((1, 32, 32, 32)):
        layers.append(nn.Conv2d(channels, 32, 3, padding=1))
        if place < 3:
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.ReLU())  # after pooling: the same function, on a quarter of the values
    layers += [nn.Flatten(), nn.Linear(32 * 3 * 3, 62)]
    for layer in layers:
        if hasattr(layer, "weight"):
            if layer.weight.ndim == 4:
                rectified = "relu"
            else:
                rectified = "linear"
            nn.init.kaiming_normal_(layer.weight, nonlinearity=rectified)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
