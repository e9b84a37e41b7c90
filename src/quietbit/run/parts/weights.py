"""Weights: a client with ten times the examples counts ten times, by a number that its owner makes public.

Idea     the payload does not say so: the number is named by the owner's policy, and the server multiplies what it
         decodes, which costs no more privacy (`quietbit.wire.uplink`).
"""

from __future__ import annotations

from typing import ClassVar, final

from attrs import frozen

from quietbit.run.section import Section, Whole, needed

__all__ = ["Weights"]


@final
@frozen
class Weights(Section):
    """``[weights]``: releases are weighted by public numbers of examples, up to ``most_examples``."""

    title: ClassVar[str] = "weights"

    most_examples: int = needed(Whole(1))
