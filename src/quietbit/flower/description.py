"""What a ledger keeps to price its releases: a mechanism written down, with the identity it must have.

Idea     an identity names a mechanism but cannot price it. The description holds its public fields and, where it
         has one, its whole design, so that the privacy curve is rebuilt from the numbers that were sampled with. What
         is rebuilt must have the identity that was noted, or it is refused.
"""

from __future__ import annotations

import json
from functools import lru_cache

from quietbit._validate import QuietbitError
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.registry import build, identity_of
from quietbit.mechanism.registry import describe as plain
from quietbit.privacy.guarantee import Adjacency
from quietbit.privacy.release import Release

__all__ = ["curve_of", "describe"]


def describe(mechanism: Mechanism) -> str:
    """One line of JSON that `curve_of` reads."""
    return json.dumps(plain(mechanism), sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=256)
def curve_of(text: str, identity: str, adjacency: Adjacency, honest: int = 0) -> Release:
    """The price of one release of the described mechanism; ``identity`` is hexadecimal and must be its own.

    Where ``honest`` is above 0 it is that of a secure sum that counts on so many honest clients.
    """
    try:
        found = build(json.loads(text))
    except (ValueError, QuietbitError) as error:
        raise QuietbitError(f"A mechanism of the ledger cannot be rebuilt: {str(error).rstrip('.')}.") from error
    if identity_of(found).hex() != identity:
        raise QuietbitError(f"A mechanism of the ledger is not the one it was noted as ({identity[:16]}...).")
    return summable(found).sum_privacy(honest, adjacency) if honest else found.privacy(adjacency)
