"""What the nodes of this app learn: a vector that depends on the node and the round alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def trained(received: NDArray[np.float32], partition: int, number: int) -> NDArray[np.float32]:
    """The model after training on node ``partition`` in round ``number``."""
    lesson = np.random.default_rng([partition, number]).standard_normal(
        received.size, dtype=np.float32
    )
    return received - np.float32(1 / 1024) * lesson.reshape(received.shape)
