"""Rounds that do not wait for everybody: they end with enough replies, and late releases join later rounds."""

from __future__ import annotations

from typing import ClassVar, final

from attrs import frozen

from quietbit.run.section import Section, Whole, choice, needed

__all__ = ["Arrivals"]

MOST_LATE = 1000  # rounds, each of which keeps its sums until then


@final
@frozen
class Arrivals(Section):
    """``[arrivals]``: a round ends with ``enough`` replies; releases may be ``staleness`` rounds late."""

    title: ClassVar[str] = "arrivals"

    enough: int = needed(Whole(1))
    staleness: int = choice(Whole(0, MOST_LATE), 0)
