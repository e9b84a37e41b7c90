"""What a run asks of a node's gate, in this process or behind a socket."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.node.request import ProposedMechanism, Request

__all__ = ["AcceptedRequest", "AppRules", "Gate"]


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


class AppRules(Protocol):
    """What an app must know of the owner's rules."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that leave the node as they are, without privacy."""

    @property
    def mechanisms(self) -> tuple[str, ...] | None:
        """Families of mechanisms that may be requested; None allows all."""

    @property
    def response_seconds(self) -> float:
        """Seconds from accepting a request to its answer."""


class Gate(Protocol):
    """What holds policy, ledger and keys: this process, or one behind a socket."""

    @property
    def rules(self) -> AppRules:
        """The owner's rules, as far as the app must know them."""

    @property
    def models(self) -> MutableMapping[str, bytes] | None:
        """Models of runs between rounds; None stores none."""

    def check(self, request: Request) -> ProposedMechanism:
        """Return the requested mechanism; refuse what the policy does not allow of run and family.

        This comes before anything of the request is stored.
        """

    def accept(self, request: Request) -> AcceptedRequest:
        """Check a request and note its release; raise a `QuietbitError` where it is refused."""

    def step(self, request: Request) -> bytes:
        """Answer a step of a masked sum that needs no training, noted in the ledger first."""

    def forget(self, run: int) -> None:
        """Delete the secrets of a run's sum, if there are any: the node has left it."""
