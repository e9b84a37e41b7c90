"""Write the conformance vectors of clients: ``PYTHONPATH=tests python -m native.vector_maker``.

A file has one mechanism. Its ``releases`` each have an update (float32, little-endian, in
hexadecimal), a key of 32 bytes and the payload that a client must send for them; ``zeroed`` has
releases of updates with a NaN or an infinity, which are those of zero. ``refused`` has texts that a
client which allows this mechanism alone must refuse, and updates that it must refuse with the
reason. ``table`` is what the C client reads, where it is short.
docs/how-to/write-a-client.md explains every field.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from core.native.kit import TARGET, by_python, text_of, updates, uplinks
from quietbit import Uplink
from quietbit.client_table import client_table
from quietbit.mechanism.registry import describe, identity_of
from quietbit.node.request import description_of

FOLDER = Path(__file__).parent.parent / "vectors"
LONGEST_TABLE = 100_000
WRITTEN = (
    "one bit",
    "one bit, rotated",
    "one bit, l1",
    "two bits",
    "three bits, five levels",
    "a seed",
    "a seed, all rows",
)


def vectors(name: str, uplink: Uplink, table: bytes) -> dict[str, Any]:
    """The vectors of one mechanism at one clip with its table, from the reference kernel."""
    mechanism = uplink.mechanism
    dimension = mechanism.ball.dimension
    keys = [bytes(range(32)), b"\xff" * 32, *(np.random.default_rng(1).bytes(32) for _ in range(4))]
    text = text_of(uplink)
    releases = [
        {
            "update": update.astype("<f4").tobytes().hex(),
            "key": key.hex(),
            "payload": by_python(uplink, update, key, "reference").hex(),
        }
        for update, key in zip(updates(dimension, 6, 9), keys, strict=True)
    ]
    key = keys[2]
    zero = by_python(uplink, np.zeros(dimension, np.float32), key, "reference").hex()
    zeroed = []
    for place, bad in ((-1, np.nan), (0, np.inf), (0, -np.inf)):
        wrong = updates(dimension, 6, 9)[5].astype("<f4")
        wrong[place] = bad
        zeroed.append({"update": wrong.tobytes().hex(), "key": key.hex(), "payload": zero})
    return {
        "format": "quietbit-vectors",
        "version": 1,
        "name": name,
        "text": text,
        "identity": identity_of(mechanism, uplink.clip).hex(),
        "description": describe(mechanism, uplink.clip),
        "description_text": description_of(mechanism, uplink.clip),
        "table": base64.b64encode(table).decode() if len(table) <= LONGEST_TABLE else None,
        "releases": releases,
        "zeroed": zeroed,
        "refused": {
            "texts": [text + " ", text.replace("radius", "Radius", 1), text[:-1], "{}", ""],
            "updates": [{"update": bytes(4 * dimension - 4).hex(), "reason": "dimension"}],
        },
    }


def file_of(name: str) -> Path:
    return FOLDER / (name.replace(",", "").replace(" ", "-") + ".json")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    known = uplinks()
    for name in WRITTEN:
        table = client_table([known[name]], TARGET)
        content = vectors(name, known[name], table)
        file_of(name).write_text(json.dumps(content, indent=1) + "\n")
