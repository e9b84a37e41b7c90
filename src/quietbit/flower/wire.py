"""How many bytes a Flower message takes: every object that is pushed for it, as it is serialised.

Idea     Flower cuts a message into objects (message, records, arrays, chunks) and sends each as bytes. Their sum is
         what a message costs before HTTP adds its heads. The objects of a model that goes to many nodes are measured
         once.
"""

from __future__ import annotations

from copy import copy

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

__all__ = ["WireSizes"]


class WireSizes:
    """Sizes of messages; messages with the same content differ by a few digits and are measured once."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[int, tuple[RecordDict, int]] = {}

    def of(self, message: Message) -> int:
        """Bytes of the message and of all that hangs on it."""
        if not message.has_content():
            return len(message.deflate())
        content = message.content
        if id(content) not in self._known:
            size = sum(len(part.deflate()) for part in get_all_nested_objects(_apart(message)).values())
            self._known[id(content)] = content, size  # holding the content keeps its id from being reused
        return self._known[id(content)][1]


def _apart(message: Message) -> Message:
    """Return the same bytes in new records: a measured array remembers its chunks, and would travel twice in ray."""
    twin, content = copy(message), RecordDict()
    for name, record in message.content.items():
        content[name] = ArrayRecord(dict(record)) if isinstance(record, ArrayRecord) else record
    twin.content = content
    return twin
