"""Rounds that do not wait for all nodes: they end with enough replies, or when their time is over.

Idea     a release that comes when its round is over is in no mean, because nobody who sees the next
         model could say whose round it was. It was made all the same: the node has noted it, and
         the server counts it.
"""

from __future__ import annotations

from typing import ClassVar, final

from attrs import frozen

from quietbit.federation.fields import Real, Whole, choice, needed
from quietbit.federation.terms import Section

__all__ = ["Stragglers"]

TIMEOUT = 3600.0


@final
@frozen
class Stragglers(Section):
    """``[stragglers]``: a round ends with ``enough`` replies, or after ``timeout`` seconds."""

    title: ClassVar[str] = "stragglers"

    enough: int = needed(Whole(1))
    timeout: float = choice(Real(), TIMEOUT)
