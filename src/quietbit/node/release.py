"""The one release of an accepted request, whatever the app does.

Idea     a request is in the ledger before its app trains. After that one release is made, of the
         same size as any other: of the zero update if something went wrong (an app that raised, a
         NaN, arrays of other shapes). So a failure looks like a release. An app that protects
         samples finds the accepted request (`served`), and hands its gradients over there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.errors import InvalidParameter, require
from quietbit.kernel.rng import RandomBits
from quietbit.mechanism.base import Batch
from quietbit.mechanism.batch import draw_batch
from quietbit.node.refusal import Noted
from quietbit.node.request import ProposedMechanism, Request, uplink_of
from quietbit.node.sum_step import SumStep
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink

__all__ = ["AcceptedRequest", "LocalAcceptedRequest", "make_release", "served", "serving", "shared"]

LOGGER = logging.getLogger(__name__)
CANNOT_SEND = "quietbit: the update cannot be sent; the zero update is released in its place."
CANNOT_MAKE = "The release of this round is noted in the ledger, and could not be made."
MADE_BEFORE = "The release of this round was made already: accept another request first."


class AcceptedRequest(Protocol):
    """A request that is noted in the ledger, and its one release.

    Attributes:
        drawn: how many samples were drawn so far; None before the first batch.
        added: how many of their gradients were added.
    """

    drawn: int | None
    added: int

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch of ``count`` samples' places, once per step of the release."""

    def add(self, rows: NDArray[Any]) -> None:
        """Clip gradients of the samples that were drawn, one per row, and add them to the batch."""

    def step(self) -> FloatVector | None:
        """Return the randomised sum of this batch; None for the last, which is the release."""

    def zero(self) -> bytes | None:
        """Return the release of the zero update; None where it is made when the update comes."""

    def release(self, update: Any) -> bytes:
        """Return the framed release of an update; None, or one that cannot be sent, is zero."""


def make_release(
    proposed: ProposedMechanism,
    clip: float,
    update: Any,
    rng: RandomBits,
    shaped: Uplink | None = None,
) -> bytes:
    """Return the payload of an update, or of the zero update where it is None or cannot be sent.

    ``shaped`` is an uplink of the same mechanism and clip that knows the update's shape.
    """
    uplink = uplink_of(proposed, clip)
    if update is not None:
        try:
            return (shaped or uplink).send(update, rng)
        except Exception as error:
            LOGGER.error(CANNOT_SEND, exc_info=error)
    if proposed.batches is not None:
        return uplink.send_batch(uplink.batch(rng))
    zeros = np.zeros(uplink.mechanism.ball.dimension, dtype=np.float32)
    return uplink.send(zeros, rng)


@final
class LocalAcceptedRequest:
    """A request that is noted in the ledger, and its one release."""

    def __init__(
        self,
        request: Request,
        proposed: ProposedMechanism,
        rng: RandomBits,
        step: SumStep | None,
        new_rng: Callable[[], RandomBits],
        samples: int | None = None,
    ) -> None:
        self._request = request
        self._proposed = proposed
        self._rng = rng
        self._step = step
        self._new_rng = new_rng  # for the zero release: other randomness, unless it is seeded
        self._samples = samples
        self._used = False
        #: Samples that were drawn (None before any batch was) and rows that were added.
        self.drawn: int | None = None
        self.added = 0
        self._batch: Batch | None = None
        self._rows_left = 0
        self._drawn = False
        self._guard = threading.Lock()  # a late app may still be running in its own thread

    @property
    def _uplink(self) -> Uplink:
        """The way of the release, at the clip of the request."""
        return uplink_of(self._proposed, self._request.clip)

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw a batch of ``count`` samples' places, once per step of the release."""
        proposed = self._proposed
        with self._guard:
            if proposed.batches is None:
                raise InvalidParameter(
                    "A batch is drawn in a run that protects samples, and this one protects "
                    "clients: set quietbit.samples.dataset-size, or train without drawing.",
                    name="batch",
                )
            if self._drawn or self._used:
                raise InvalidParameter(
                    "A batch is drawn once per step: call step or release first.", name="batch"
                )
            if self._samples is not None:
                rule = f"{self._samples}, as in the node's policy"
                require(count == self._samples, "number of samples", count, rule)
            places = draw_batch(self._rng, proposed.sampling_rate, count)
            if self._batch is None:
                self._batch = self._uplink.batch(self._rng)
            self._rows_left = places.size
            self.drawn = (self.drawn or 0) + places.size
            self._drawn = True
        return places

    def add(self, rows: NDArray[Any]) -> None:
        """Clip gradients of the samples that were drawn, one per row, and add them to the batch."""
        with self._guard:
            if self._batch is None or self._used:
                raise InvalidParameter(
                    "Gradients are added after a batch is drawn and before the release.",
                    name="gradients",
                )
            rule = f"at most {self._rows_left}, one per sample that was drawn"
            require(len(rows) <= self._rows_left, "number of gradients", len(rows), rule)
            # Rows that are refused count, too: some of them may have been added.
            self._rows_left -= len(rows)
            self.added += len(rows)
            self._batch.add(rows)

    def step(self) -> FloatVector | None:
        """Return the randomised sum of this batch; None for the last, which is the release."""
        with self._guard:
            if self._batch is None or self._used or not self._drawn:
                raise InvalidParameter(
                    "A step is taken after a batch is drawn and before the release.", name="step"
                )
            change = self._batch.step()
            self._rows_left = 0
            self._drawn = change is None
            return change

    def zero(self) -> bytes:
        """Return the release of the zero update, which leaves if the app's is not made in time.

        Call it before the app: then it can leave whatever the app does to the process. Only one of
        the two releases ever leaves, and each has randomness of its own.
        """
        try:
            payload = make_release(self._proposed, self._request.clip, None, self._new_rng())
            if self._step is not None:
                payload = self._step.mask_zero(payload)
        except Exception as error:  # the ledger has the release, and the server must count it
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error
        return self._framed(payload)

    def release(self, update: Any) -> bytes:
        """Return the framed payload of an update, masked if it goes into a sum."""
        return self._framed(self.payload(update))

    def _framed(self, payload: bytes) -> bytes:
        request = self._request
        return Framed(request.run, request.round, request.node, payload).to_bytes()

    def payload(self, update: Any, shaped: Uplink | None = None) -> bytes:
        """Return the payload without a frame, once; ``shaped`` is as in `make_release`."""
        with self._guard:
            if self._used:
                raise Noted(MADE_BEFORE)
            self._used = True
        try:
            if self._batch is not None:
                payload = self._uplink.send_batch(self._batch)
            else:
                payload = make_release(
                    self._proposed, self._request.clip, update, self._rng, shaped
                )
            if self._step is not None:
                payload = self._step.mask(payload)
        except Exception as error:
            LOGGER.error("quietbit: encoding the zero update failed.", exc_info=error)
            raise Noted(CANNOT_MAKE) from error
        return payload


_ACCEPTED: ContextVar[AcceptedRequest | None] = ContextVar("quietbit_accepted", default=None)
# For apps in threads and processes of their own: at most one request, with its dimension.
_SHARED: list[tuple[AcceptedRequest, int]] = []


@contextmanager
def serving(accepted: AcceptedRequest, *, dimension: int | None = None) -> Iterator[None]:
    """Let the app that is called inside find its batch.

    With the ``dimension``, it is found in all threads and child processes of this process.
    """
    token = _ACCEPTED.set(accepted)
    shared = []
    if dimension is not None:
        shared.append((accepted, dimension))
    _SHARED[:] = shared
    try:
        yield
    finally:
        _ACCEPTED.reset(token)
        if shared == _SHARED:  # and not that of a later round, where this one's app was abandoned
            _SHARED.clear()


def shared() -> tuple[AcceptedRequest, int] | None:
    """Return the request that all threads and child processes find, with its dimension."""
    return next(iter(_SHARED), None)


def served() -> AcceptedRequest | None:
    """Return the request that this app is called for; None outside a round."""
    accepted = _ACCEPTED.get()
    if accepted is None and _SHARED:
        accepted = _SHARED[0][0]
    return accepted
