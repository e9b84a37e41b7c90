"""Messages of other versions, with keys missing, added and changed, on the gatekeeper's socket.

Idea     whatever an app sends, a release is noted exactly where the gatekeeper says that it
         accepted, and then exactly one release comes back, as long as any other.
"""

import random

import numpy as np

from federation.node.makers import DIMENSION, books, connected, request, serving
from quietbit.node.channel import receive, send
from quietbit.node.refusal import Unusable

CASES = 150
VALUES = [None, True, 0, -1, 1.5, 1e308, "x", "", [], {}, [1], {"a": 1}, 10**30, "7"]
ASKS = ["offer", "question", "price", "ticket", "accept", *VALUES]
DATA = [b"", b"x" * 5, np.ones(DIMENSION).tobytes(), np.full(DIMENSION, np.nan).tobytes()]
ROWS = [b"", b"x" * 7, np.ones(DIMENSION, dtype="<f4").tobytes()]


def changed(rng, number):
    """A request for a release, as another version or somebody else might write it."""
    values = request(number).to_json()
    message = {"ask": "release", "request": values}
    match rng.randrange(7):
        case 0:
            message["question"] = message.pop("request")
        case 1:
            message["question"] = values
        case 2:
            values.pop(rng.choice(list(values)))
        case 3:
            values["price"] = 1
        case 4:
            values[rng.choice(list(values))] = rng.choice(VALUES)
        case 5:
            message["ask"] = rng.choice(ASKS)
    return message


def conversation(rng, number):
    """A request, messages about batches that this run has none of, and an update."""
    messages = [(changed(rng, number), b"")]
    for _ in range(rng.randrange(3)):
        messages.append(({rng.choice(["draw", "rows", "step"]): rng.choice(VALUES)}, DATA[1]))
        messages.append(({"rows": 1}, rng.choice(ROWS)))
    return [*messages, ({"update": True}, rng.choice(DATA))]


def answers(folder, messages):
    """What comes back, until the connection ends."""
    received = []
    with connected(folder) as connection:
        try:
            for message, data in messages:
                send(connection, message, data)
                received.append(receive(connection, 2**20, 20.0))
        except (OSError, Unusable):
            return received
    return received


def test_one_release_for_each_note_and_none_without(tmp_path):
    rng = random.Random(3)  # noqa: S311 - no secret
    sizes = set()
    accepted = 0
    with serving(tmp_path, epsilon=1e6, releases=CASES, releases_per_day=CASES):
        for number in range(1, CASES + 1):
            received = answers(tmp_path, conversation(rng, number))
            releases = [data for answer, data in received if data[:3] == b"QBR"]
            is_accepted = received[0][0] == {"accepted": True}
            accepted += is_accepted
            assert len(releases) == is_accepted
            assert books(tmp_path).releases == accepted
            sizes |= {len(data) for data in releases}
    assert 10 < accepted < CASES - 10
    assert len(sizes) == 1
