"""What a node itself demands of masked sums, in its node config: it need not believe a run's word on trust.

Idea     a run that says *secure aggregation* asks a node to spend less epsilon on the same codes, because others' codes
         hide them. A node with anything of its own to protect must say so too, and may be more careful than the run.

| node config | meaning |
|---|---|
| `quietbit.trust` | `secure-aggregation`: this node takes part in sums, and its own budget is about sums |
| `quietbit.threshold` | it declines sums that may be made of fewer clients |
| `quietbit.honest` | it counts on no more honest clients than these, whatever the run says |

A node whose node config has no ``quietbit.`` key follows the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quietbit._validate import InvalidParameter, require, whole_number
from quietbit.flower.settings import PREFIX, RunSettings
from quietbit.privacy.guarantee import Trust

__all__ = ["honest_for"]


def honest_for(settings: RunSettings, node_config: Mapping[str, Any]) -> int:
    """How many honest clients this node's ledger counts on in a sum; 0 where the server sees every release.

    Refused: a sum that this node has not agreed to.
    """
    if settings.honest is None or settings.threshold is None:
        return 0
    own = [key for key in node_config if key.startswith(PREFIX)]
    if own and node_config.get("quietbit.trust") != Trust.SECURE_AGGREGATION.value:
        raise InvalidParameter(
            f'quietbit.trust must be "local" on a node with a setting of its own ({own[0]}), unless its node config '
            'says quietbit.trust = "secure-aggregation" too, got "secure-aggregation" from the run.'
        )
    if "quietbit.threshold" in node_config:
        least = whole_number(node_config["quietbit.threshold"], "quietbit.threshold of the node", 2)
        rule = f"at least {least}, this node's own"
        require(settings.threshold >= least, "threshold of the sum", settings.threshold, rule)
    if "quietbit.honest" in node_config:
        return min(settings.honest, whole_number(node_config["quietbit.honest"], "quietbit.honest of the node", 2))
    return settings.honest
