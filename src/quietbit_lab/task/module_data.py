"""Examples where torch works: drawn by index, and turned into what a module takes.

Idea     on a GPU the inputs are moved once, in the type they are stored in (bytes for images), and a batch is
         picked and scaled there; on a CPU they stay where they are, a file mapped into memory included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require_module
from quietbit_lab.task.dataset import Examples

__all__ = ["Prepare", "StoredExamples"]

Prepare: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float32]]


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
        """Examples for this device; a ``prepare`` of the user's own works on arrays, so these then stay."""
        torch = require_module("torch", "lab")
        if device == "cpu" or prepare is not None:
            return cls(examples.inputs, examples.labels, device, prepare)
        inputs = torch.from_numpy(np.array(examples.inputs)).to(device)
        return cls(inputs, torch.from_numpy(np.array(examples.labels)).to(device), device, None)

    def batch(self, chosen: NDArray[np.int64]) -> tuple[Any, Any]:
        """Inputs, ready for the module, and labels of the chosen examples."""
        torch = require_module("torch", "lab")
        if isinstance(self.inputs, np.ndarray):
            some = self.inputs[chosen] if self.prepare is None else self.prepare(self.inputs[chosen])
            inputs, labels = torch.from_numpy(some).to(self.device), torch.from_numpy(self.labels[chosen])
            return (inputs if self.prepare is not None else _images(inputs)), labels.to(self.device)
        places = torch.from_numpy(chosen).to(self.device)
        return _images(self.inputs[places]), self.labels[places]


def _images(inputs: Any) -> Any:
    """uint8 images as (count, colours, height, width) floats in [0, 1]; floats as they are."""
    torch = require_module("torch", "lab")
    if inputs.dtype != torch.uint8:
        return inputs.float()
    planes = inputs[:, None] if inputs.ndim == 3 else inputs.permute(0, 3, 1, 2)
    return planes.float().contiguous() / 255
