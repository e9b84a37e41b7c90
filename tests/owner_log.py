"""What the owner of a node reads in its log, for tests of refusals: a server hears a value
alone.
"""

import logging

import pytest

LOGGER = logging.getLogger("quietbit.node.gate")


class OwnerLog(logging.Handler):
    """Keeps the lines of decisions."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def last(self):
        return self.lines[-1] if self.lines else ""

    def text(self):
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
