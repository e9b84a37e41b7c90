"""The app's half of a run that protects samples: a batch that the gate drew, and the gradients of its samples.

Idea     the gate draws the batch and clips, adds up and randomises what comes of it; the app computes one gradient per
         drawn sample and hands them over. What it returns to its engine plays no part; one that hands nothing over
         lets a release of zero out. Where a run asks for several steps between rounds, the gate says after each how the
         site's model changes. docs/explanation/threat-model.md says what no gate can check of an app's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from quietbit.errors import InvalidParameter, require_module
from quietbit.gradients import Loss, sample_gradients, samples_at_once, trainable
from quietbit.node.gatekeeper import BatchSocket, Ticket, batch_of_parent

__all__ = ["current_batch", "private_step", "serving", "share_batches"]

_TICKET: ContextVar[Ticket | None] = ContextVar("quietbit_ticket", default=None)
_SHARED: list[tuple[Ticket, int]] = []  # for apps in threads and processes of their own, with the dimension


@contextmanager
def serving(ticket: Ticket, *, dimension: int | None = None) -> Iterator[None]:
    """Let the app that is called inside find its batch; with the ``dimension``, in all threads and child processes."""
    token, shared = _TICKET.set(ticket), [] if dimension is None else [(ticket, dimension)]
    _SHARED[:] = shared
    try:
        yield
    finally:
        _TICKET.reset(token)
        if shared == _SHARED:  # and not that of a later round, where this one's app was abandoned
            _SHARED.clear()


@cache
def share_batches() -> BatchSocket:
    """Let processes that this one will start find the batches of their rounds."""
    return BatchSocket(lambda: next(iter(_SHARED), None))


def current_batch() -> Ticket:
    """Return the batch of the round that the app is called for: ``draw(count)``, then ``add(rows)``.

    ``rows`` are gradients of drawn samples, one row each, with the model's learnt arrays one after the other; the gate
    clips each. Refused outside a training round with quietbit's mod or filter.
    """
    shared = next(iter(_SHARED), (None, 0))[0]
    found = _TICKET.get() or shared or batch_of_parent()
    if found is None:
        raise InvalidParameter(
            "A batch must be asked for while an app trains for a round: in the train function of a Flower app, or "
            "between receive and send of an NVFlare script."
        )
    return found


def private_step(model: Any, loss: Loss, data: tuple[Any, Any], *, chunk: int | None = None) -> int:
    """Draw this round's batch from the site's data, and hand the gate the gradient of every sample in it.

    Where the run asks for several steps per round (``local-steps``), do so for each, and change the model in between.
    Return how many samples were drawn, which is not to be told to anybody.

    Args:
        model: a ``torch.nn.Module`` that holds the round's arrays, all of whose learnt ones are trainable.
        loss: of outputs and targets, one number per sample (``reduction="none"``).
        data: inputs and targets of all samples of the site, tensors with one entry per sample.
        chunk: samples at once; as many as fit unless given.
    """
    torch: Any = require_module("torch", "torch")
    inputs, targets = data
    batch, seen = current_batch(), 0
    parameters = list(trainable(model).values())
    sizes = [part.numel() for part in parameters]
    step = samples_at_once(parameters, chunk)
    while True:
        places = batch.draw(len(inputs)).tolist()
        seen += len(places)
        for start in range(0, len(places), step):
            drawn = places[start : start + step]
            batch.add(sample_gradients(model, loss, (inputs[drawn], targets[drawn])).detach().cpu().numpy())
        change = batch.step()
        if change is None:
            return seen
        with torch.no_grad():
            for part, values in zip(parameters, torch.from_numpy(change.copy()).split(sizes), strict=True):
                part -= values.to(part).reshape(part.shape)
