"""The gradient of one sample by the code of model and loss, where it cannot be recorded.

Idea     the code runs on a batch of one sample, each time on fresh copies of model and loss and
         with randomness of its own. What it keeps outside of them reaches the next sample:
         docs/theory/sample-rows.md says what is shared.
"""

from __future__ import annotations

import copy
from typing import Any, TypeAlias, final

from quietbit.errors import InvalidParameter, require, require_module
from quietbit.gradients.randomness import private_randomness_of_code
from quietbit.gradients.trace import Loss, loss_of_one, trainable

__all__ = ["CodeGradient"]

Tensor: TypeAlias = Any


@final
class CodeGradient:
    """One sample after the other, each through fresh copies of the model and the loss."""

    def __init__(self, model: Any, loss: Loss) -> None:
        """Keep the model and the loss, whose code each sample runs."""
        self._torch: Any = require_module("torch", "torch")
        self._model = model
        self._loss = loss

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Refuse a model without a gradient for the first sample of a tile of zeros."""
        try:
            self.slopes(inputs[:1], targets[:1])
        except InvalidParameter:
            raise
        except Exception as reason:
            rule = "one that has a gradient for a single example of zeros (see the cause)"
            kind = type(self._model).__name__
            raise InvalidParameter.of("model", rule, kind) from reason

    def slopes(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the gradient of one sample, parameter by parameter."""
        torch = self._torch
        model = copy.deepcopy(self._model)
        loss = copy.deepcopy(self._loss)
        for given, copied in ((self._model, model), (self._loss, loss)):
            if isinstance(given, torch.nn.Module):
                _check_copied(given, copied)
        parameters = list(trainable(model).values())
        # Compiled code keeps what it compiled for earlier samples, and gives up after a few.
        eager = torch.compiler.set_stance("force_eager")
        with private_randomness_of_code(), eager, torch.enable_grad():
            value = loss_of_one(loss, model(inputs.clone()), targets.clone())
            slopes = torch.autograd.grad(value, parameters, allow_unused=True)
        found = []
        for part, slope in zip(parameters, slopes, strict=True):
            found.append((torch.zeros_like(part) if slope is None else slope)[None])
        return found


def _check_copied(given: Any, copied: Any) -> None:
    """Refuse layers whose copy is themselves: one sample would find what another left in them."""
    layers = set(given.modules())
    shared = [type(layer).__name__ for layer in copied.modules() if layer in layers]
    rule = "made of layers that can be copied, where samples go one by one"
    require(not shared, "model or loss", ", ".join(shared), rule)
