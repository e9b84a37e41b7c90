"""Which random words a release is made with: the operating system's, unless a test says otherwise.

Idea     seeded words make a run repeatable and protect nobody. They need the run's consent and, on a node that has
         anything of its own to protect (a ``quietbit.`` key in its node config), the node's as well. A release's
         words depend on the seed, the round and the node's partition alone: those of the engine-free simulator.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.flower.settings import PREFIX, RunSettings
from quietbit.kernel.rng import RandomBits, secure_rng
from quietbit.simulate.client_rng import CLIENT_BITS, seeded_client_rng

__all__ = ["SeededWordsWarning", "rng_for", "warn_if_seeded"]


class SeededWordsWarning(UserWarning):
    """Releases are made with words that anyone can repeat."""


def warn_if_seeded(settings: RunSettings) -> None:
    """Say aloud that a run is not private."""
    if settings.words != "secure":
        warnings.warn("quietbit.words is seeded: releases of this run protect nobody.", SeededWordsWarning, 3)


def rng_for(settings: RunSettings, node_config: Mapping[str, Any], number: int) -> RandomBits:
    """The words of this node's release in round ``number``, from 1 on."""
    if settings.words == "secure":
        return secure_rng()
    own = [key for key in node_config if key.startswith(PREFIX)]
    if own and node_config.get("quietbit.words") != "seeded":
        raise InvalidParameter(
            f'quietbit.words must be "secure" on a node with a setting of its own ({own[0]}), unless its node config '
            'says quietbit.words = "seeded" too, got "seeded" from the run.'
        )
    if "partition-id" not in node_config:
        raise InvalidParameter("node config must have a partition-id for seeded words, and it is missing.")
    client = whole_number(node_config["partition-id"], "partition-id", 0, 2**CLIENT_BITS - 1)
    require(number >= 1, "round", number, "at least 1")
    warn_if_seeded(settings)
    return seeded_client_rng(settings.seed)(number - 1, client)
