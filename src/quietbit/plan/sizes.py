"""What a client sends and gets in a round, in bytes.

Idea     a payload is a header and a body; behind masks a code is as wide as the largest sum, and keys and shares, which
         do not grow with the update, come apart from it; a server that is trusted gets 32-bit floats.
"""

from __future__ import annotations

from quietbit.mechanism.base import Mechanism
from quietbit.privacy.guarantee import Trust
from quietbit.secagg.plan import masked_size
from quietbit.wire.downlink import HEAD
from quietbit.wire.payload import Header

__all__ = ["FLOAT_BYTES", "bytes_received", "bytes_sent"]

FLOAT_BYTES = 4


def bytes_received(mechanism: Mechanism, keep: int | None) -> int:
    """Bytes that a client gets for a round: its broadcast where few coordinates are kept, else the model."""
    model = FLOAT_BYTES * mechanism.domain.dimension
    return model if keep is None else min(model, HEAD.size + FLOAT_BYTES * keep)


def bytes_sent(mechanism: Mechanism, trust: Trust, cohort: int) -> int:
    """Bytes of one client's update under this trust, in a round of ``cohort`` clients."""
    if trust is Trust.CENTRAL:
        return FLOAT_BYTES * mechanism.domain.dimension
    if trust is Trust.SECURE_AGGREGATION:
        layout = mechanism.layout
        return masked_size(cohort, layout.count, 2**layout.bits - 1)
    return Header.of(mechanism).size
