"""Rounds that nodes replay: broadcasts of past rounds in place of the model."""

from __future__ import annotations

from typing import ClassVar, final

from attrs import frozen

from quietbit.run.section import Section

__all__ = ["Replay"]


@final
@frozen
class Replay(Section):
    """``replay = true``: clients of a round keep the same rows, and download rounds they missed, not the model."""

    title: ClassVar[str] = "replay"
