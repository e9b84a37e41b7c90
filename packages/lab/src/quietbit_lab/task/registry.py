"""Tasks by name: from a few words to a problem that can be trained.

Idea     a task is a data set, a model and a partition into clients; its words are kept in records
         and sweeps, so that the same words give the same problem. A task of one's own is
         ``module:function``; see `task/own.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from quietbit.errors import check_int, check_known, require
from quietbit.federation.simulate.problem import Problem
from quietbit_lab.task.dataset import Dataset, Examples, Partition, data_folder
from quietbit_lab.task.own import is_own, own_problem

__all__ = ["MODELS", "TASKS", "TaskSpec", "build_task", "load_dataset"]

Report = Callable[[float, str], None]
TASKS = ("digits", "mnist", "fashion-mnist", "cifar10", "femnist")
MODELS = ("linear", "scatter", "cnn", "efficientnet-head")
USUAL = {
    "digits": "linear",
    "mnist": "scatter",
    "fashion-mnist": "scatter",
    "cifar10": "scatter",
    "femnist": "cnn",
}
CLIENTS = ("examples", "writers")


@final
@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The words of a task.

    ``name``: a data set, or ``module:function`` for a problem of one's own, which takes no other
    word. ``model``: ``linear`` on pixels, ``scatter`` (linear on ScatterNet features), ``cnn``, or
    ``efficientnet-head`` (linear on a pre-trained network's features, CIFAR-10); by default what
    the paper used. ``clients``: every client one of the ``examples``, or ``samples`` of them, or
    one of the ``writers`` (MNIST and FEMNIST) who has at least ``least`` examples.
    """

    name: str
    model: str = ""
    clients: str = ""
    samples: int = 1
    least: int = 1

    def __post_init__(self) -> None:
        """Refuse words that are none of ours, and combinations that no data set has."""
        if is_own(self.name):
            plain = (self.model, self.clients, self.samples, self.least) == ("", "", 1, 1)
            rule = "given without model, clients, samples and least"
            require(plain, "task", self.name, rule, "leave them to its function")
            return
        require(
            self.name in TASKS,
            "task",
            self.name,
            "one of " + ", ".join(TASKS) + ", or module:function",
        )
        put = object.__setattr__
        put(self, "model", self.model or USUAL[self.name])
        put(self, "clients", self.clients or ("writers" if self.name == "femnist" else "examples"))
        require(self.model in MODELS, "model", self.model, "one of " + ", ".join(MODELS))
        made_for = {
            "cnn": ("mnist", "fashion-mnist", "femnist"),
            "scatter": TASKS[1:],
            "efficientnet-head": ("cifar10",),
        }
        fitting = made_for.get(self.model, TASKS)
        require(
            self.name in fitting,
            "model",
            self.model,
            f"one that is made for {self.name}",
            f"use it with {', '.join(fitting)}",
        )
        require(self.clients in CLIENTS, "clients", self.clients, "one of " + ", ".join(CLIENTS))
        written = self.clients == "examples" or self.name in ("mnist", "femnist")
        require(
            written,
            "clients",
            self.clients,
            f"examples for {self.name}",
            "its writers are not known",
        )
        put(self, "samples", check_int(self.samples, "samples per client", 1))
        put(self, "least", check_int(self.least, "least samples of a client", 1))

    def to_json(self) -> dict[str, Any]:
        """Plain values for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TaskSpec:
        """Return a spec from a record or a sweep; refuse an unknown name."""
        known = [field.name for field in fields(cls)]
        for name in values:
            check_known(name, known, "setting of the task")
        require("name" in values, "task", sorted(values), "a table with a name")
        return cls(**values)


def build_task(
    spec: TaskSpec,
    *,
    data: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    report: Report | None = None,
) -> Problem:
    """Build the problem that a spec describes; ``seed`` groups examples into clients of several.

    ``device`` is where torch computes features, and the gradients of networks.
    """
    if is_own(spec.name):
        return own_problem(spec.name, seed)
    dataset = load_dataset(spec, data, report, device)
    start = None
    if spec.model == "efficientnet-head":
        from quietbit_lab.task.efficientnet import with_efficientnet

        dataset, start = with_efficientnet(dataset, data_folder(data), report, device)
    partition = _partition(spec, dataset, seed)
    if spec.model == "cnn":
        from quietbit_lab.task.module import ModuleProblem, femnist_network, mnist_network

        if spec.name == "femnist":
            make = femnist_network
        else:
            make = mnist_network
        return ModuleProblem(dataset, partition, make, device=device)
    from quietbit_lab.task.linear import LinearSoftmax

    return LinearSoftmax(dataset, partition, start)


def load_dataset(
    spec: TaskSpec, data: Path | None = None, report: Report | None = None, device: str = "cpu"
) -> Dataset:
    """Load the data set with the inputs that a network or ScatterNet takes, on ``device``."""
    dataset = _raw(spec, data)
    if spec.model == "scatter":
        from quietbit_lab.task.scatter import scattered

        return scattered(dataset, report, device=device)
    if spec.model == "linear":
        return _pixels(dataset)
    return dataset


def _raw(spec: TaskSpec, data: Path | None) -> Dataset:
    from quietbit_lab.task import images

    if spec.name == "digits":
        return images.load_digits()
    folder = data_folder(data)
    if spec.name == "cifar10":
        return images.load_cifar10(folder)
    if spec.name == "femnist":
        return images.load_femnist(folder, spec.least)
    by_writer = spec.clients == "writers"
    if spec.name == "mnist":
        return images.load_mnist(folder, by_writer)
    return images.load_fashion_mnist(folder)


def _pixels(dataset: Dataset) -> Dataset:
    """Images as float32 vectors in [0, 1]; what is float32 already stays."""
    import numpy as np

    def ready(examples: Examples) -> Examples:
        inputs = examples.inputs
        if inputs.dtype == np.float32:
            return examples
        flat = inputs.reshape(inputs.shape[0], -1).astype(np.float32)
        return Examples(flat / np.float32(255), examples.labels)

    return Dataset(
        dataset.name, dataset.classes, ready(dataset.train), ready(dataset.test), dataset.writers
    )


def _partition(spec: TaskSpec, dataset: Dataset, seed: int) -> Partition:
    if spec.clients == "writers" and dataset.writers is not None:
        return Partition.by_owner(dataset.writers, spec.least)
    if spec.samples > 1:
        return Partition.groups(dataset.train.count, spec.samples, seed)
    return Partition.one_each(dataset.train.count)
