"""The app's half of a run that protects samples: a batch that the gate drew, and its gradients.

Idea     the gate draws the batch and clips, adds up and randomises what comes of it; the app
         computes one gradient per drawn sample and hands them over. What it returns to its engine
         plays no part; one that hands nothing over lets a release of zero out. Where a run asks for
         several steps between rounds, the gate says after each how the site's model changes.
         docs/explanation/threat-model.md says what no gate can check of an app's rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from quietbit.errors import InvalidParameter, require_module
from quietbit.federation.client import served, shared
from quietbit.gradients import Loss, SampleGradients, trainable
from quietbit.node.gatekeeper import AcceptedRequest, BatchSocket, batch_of_parent

__all__ = ["dp_sgd_step", "private_batch", "share_batches"]


@cache
def share_batches() -> BatchSocket:
    """Let processes that this one will start find the batches of their rounds."""
    return BatchSocket(shared)


def private_batch() -> AcceptedRequest:
    """Return the batch of the app's round: call ``draw(count)``, then ``add(rows)``.

    ``rows`` are gradients of drawn samples, one row each, with the model's learnt arrays one after
    the other; the gate clips each. Refused outside a training round with quietbit's mod or filter.
    """
    accepted = served()
    if accepted is None:
        accepted = batch_of_parent()
    if accepted is None:
        raise InvalidParameter(
            "A batch must be asked for while an app trains for a round: in the train function of "
            "a Flower app, or between receive and send of an NVFlare script."
        )
    return accepted


def dp_sgd_step(model: Any, loss: Loss, data: tuple[Any, Any], *, chunk: int | None = None) -> int:
    """Draw this round's batch from the site's data, and hand the gate its samples' gradients.

    Where the run asks for several steps per round (``local-steps``), do so for each, and change the
    model in between. Return how many samples were drawn, which is not to be told to anybody.

    Model and loss see one sample at a time, whatever they do, so that each row depends on one
    sample alone. They are tried on an example of zeros before a batch is drawn; what fails there is
    refused. A drawn sample that raises or has no finite gradient counts as zero, and changes
    nothing for the others. docs/theory/sample-rows.md says more.

    Args:
        model: a ``torch.nn.Module`` that holds the round's arrays, all of whose learnt ones are
            trainable.
        loss: of outputs and targets, one number; any reduction is the same, as it is given one
            sample at a time.
        data: inputs and targets of all samples of the site, tensors with one entry per sample.
        chunk: samples at once; as many as suit the device and its memory unless given.
    """
    torch: Any = require_module("torch", "torch")
    batch = private_batch()
    gradients = SampleGradients(model, loss, data, tile=chunk)
    parameters = list(trainable(model).values())
    sizes = [part.numel() for part in parameters]
    drawn_samples = 0
    while True:
        places = batch.draw(len(data[0]))
        drawn_samples += len(places)
        for _, rows in gradients.pieces(data, places):
            batch.add(rows.cpu().numpy())
        change = batch.step()
        if change is None:
            return drawn_samples
        changes = torch.from_numpy(change.copy()).split(sizes)
        with torch.no_grad():
            for part, values in zip(parameters, changes, strict=True):
                part -= values.to(part).reshape(part.shape)
