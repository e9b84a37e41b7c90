"""Compile the CPU kernels and leave them in numba's cache, before many processes would compile the same at once."""

from __future__ import annotations

import numpy as np

from quietbit import Uplink
from quietbit.kernel.rng import secure_rng, seeded_rng
from unit.mechanism.makers import MECHANISMS


def main() -> None:
    """One release and one mean of every mechanism, for updates of either width."""
    for mechanism in MECHANISMS.values():
        uplink = Uplink(mechanism)
        for kind in (np.float32, np.float64):
            update = np.full(mechanism.domain.dimension, 0.01, kind)
            uplink.receive([uplink.send(update, rng) for rng in (seeded_rng(1), secure_rng())])


if __name__ == "__main__":
    main()
