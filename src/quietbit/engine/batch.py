"""The app's half of a run that protects samples: a batch that the gate drew, and the gradients of its samples.

Idea     the gate draws the batch and clips, adds up and randomises what comes of it; the app computes one gradient per
         drawn sample and hands them over. What it returns to its engine besides plays no part. An app that hands
         nothing over lets a release of zero out, like one whose batch was empty.

What no gate can check: that a row depends on one sample alone, that it belongs to a sample that was drawn, and that an
app does not stop, or choose what it hands over, in the light of a sample. docs/explanation/threat-model.md says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from quietbit.errors import InvalidParameter, check_int
from quietbit.gradients import CHUNK_NUMBERS, Loss, sample_gradients
from quietbit.node.release import Ticket

__all__ = ["current_batch", "private_step", "serving"]

_TICKET: ContextVar[Ticket | None] = ContextVar("quietbit_ticket", default=None)


@contextmanager
def serving(ticket: Ticket) -> Iterator[None]:
    """Let the app that is called inside find the batch of its round."""
    token = _TICKET.set(ticket)
    try:
        yield
    finally:
        _TICKET.reset(token)


def current_batch() -> Ticket:
    """Return the batch of the round that the app is called for: ``draw(count)``, then ``add(rows)``.

    ``rows`` are gradients of drawn samples, one row each, with the model's learnt arrays one after the other; the gate
    clips each. Refused outside a training round with quietbit's mod.
    """
    found = _TICKET.get()
    if found is None:
        raise InvalidParameter("A batch must be asked for inside the train function of an app with PrivateUplink.")
    return found


def private_step(model: Any, loss: Loss, data: tuple[Any, Any], *, chunk: int | None = None) -> int:
    """Draw this round's batch from the site's data, and hand the gate the gradient of every sample in it.

    Args:
        model: a ``torch.nn.Module`` that holds the round's arrays, all of whose learnt ones are trainable.
        loss: of outputs and targets, one number per sample (``reduction="none"``).
        data: inputs and targets of all samples of the site, tensors with one entry per sample.
        chunk: samples at once; as many as fit unless given.

    Returns how many samples were drawn, which is not to be told to anybody.
    """
    inputs, targets = data
    batch = current_batch()
    places = batch.draw(len(inputs)).tolist()
    size = sum(part.numel() for part in model.parameters() if part.requires_grad)
    step = check_int(chunk or max(1, CHUNK_NUMBERS // max(1, size)), "chunk", 1)
    for start in range(0, len(places), step):
        drawn = places[start : start + step]
        batch.add(sample_gradients(model, loss, (inputs[drawn], targets[drawn])).detach().cpu().numpy())
    return len(places)
