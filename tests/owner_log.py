"""What the owner of a node reads in its log, for tests of refusals: a server hears a value
alone.
"""

from __future__ import annotations

import logging

import pytest

LOGGER = logging.getLogger("quietbit.node.gate")


class OwnerLog(logging.Handler):
    """Keeps the lines of decisions."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def last(self) -> str:
        return self.lines[-1] if self.lines else ""

    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def owner_log():
    """All decisions of nodes in this test, those of simulated ones included."""
    handler = OwnerLog()
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
