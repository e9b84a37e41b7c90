"""From the server's description to a mechanism and its price: built, certified and priced here.

Idea     the server says which mechanism it will decode with, in full; nobody runs its calibration again. The node
         builds it from that description, takes its privacy from the numbers it will sample with, and believes
         nothing else. A description is the server's to choose, so its size is limited, and with it the work: building
         and pricing the largest one took 0.3 s, others a few milliseconds (`tests/attack/test_extreme_numbers.py`).
         Prices are therefore found anew in every process, and are not kept on disk, where a wrong one would outlive
         the release that corrects it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

from attrs import frozen

from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.privacy.account import Account
from quietbit.privacy.cost import Cost
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit.wire.uplink import Uplink

__all__ = ["MOST_DESCRIPTION", "ProposedMechanism", "description_of", "entry", "text_of"]

MOST_DESCRIPTION = 2**18
_MOST_ENTRIES = 4096
_ENTRIES: dict[tuple[Any, ...], Cost] = {}


@final
@frozen(eq=False)
class ProposedMechanism:
    """A mechanism that a server asks for: built from its description, with its identity (hexadecimal) and family.

    Where a clip moves, the mechanisms of all rounds have one price: ``identity`` and ``description`` are then those of
    the one that stands for them (`priced_as`), so that the ledger notes it once.
    """

    mechanism: Mechanism
    identity: str
    family: str
    uplink: Uplink

    @classmethod
    def read(cls, text: str) -> ProposedMechanism:
        """Build it; a description that is too long, or of no mechanism we know, is refused."""
        if not isinstance(text, str) or len(text) > MOST_DESCRIPTION:
            raise InvalidParameter.of("description of the mechanism", f"at most {MOST_DESCRIPTION} characters", "more")
        return _built(text)

    @property
    def description(self) -> Any:
        """Plain values that rebuild it."""
        return describe(self.mechanism.priced_as)

    def cost(self, adjacency: Adjacency, honest: int, unit: Unit = Unit.CLIENT) -> Cost:
        """Return what one release costs, alone (0) or as part of a sum; refused where no number can say it.

        Of a batch, a sample costs what the batch says. Of any other update it costs what replacing the update does:
        whatever a sample's change makes of an update, another one in the same ball comes of it.
        """
        mechanism = self.mechanism.priced_as
        try:
            if unit is Unit.SAMPLE and mechanism.batch and not honest:
                return mechanism.privacy(adjacency, mechanism.batch)
            which = adjacency if unit is Unit.CLIENT else Adjacency.REPLACE_ONE
            whole = summable(mechanism).sum_privacy(honest, which) if honest else mechanism.privacy(which)
            if unit is Unit.CLIENT:
                return whole
            return whole.bare().of(which, Unit.SAMPLE, Trust.SECURE_AGGREGATION if honest else Trust.LOCAL, 1)
        except QuietbitError:
            raise
        except (ArithmeticError, ValueError) as error:  # numbers so large or small that no account can hold them
            raise InvalidParameter(f"The described mechanism has no cost ({type(error).__name__}).") from error


def entry(identity: str, read: Callable[[], ProposedMechanism], cap: Target, honest: int, floor: float) -> Cost:
    """Return what a release of this mechanism adds to an account under a cap; no less than a pure epsilon of ``floor``.

    An identity names a mechanism: its cost is found once in a process, and is one object, by which an account knows it.
    """
    own = honest if cap.trust is Trust.SECURE_AGGREGATION else 0
    key = identity, cap.adjacency, cap.unit, cap.trust, own, floor
    found = _ENTRIES.get(key)
    if found is None:
        cost = read().cost(cap.adjacency, own, cap.unit).at_least(floor)
        found = Account(cap, "adaptive").spend(cost).entries[0][0]
        if len(_ENTRIES) >= _MOST_ENTRIES:
            _ENTRIES.clear()
        _ENTRIES[key] = found
    return found


def description_of(mechanism: Mechanism) -> str:
    """Return one line of JSON that `ProposedMechanism.read` reads."""
    return text_of(describe(mechanism))


def text_of(description: Any) -> str:
    """Return the one line of JSON for a description, by which a process knows what it has built."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=64)
def _built(text: str) -> ProposedMechanism:
    try:
        mechanism = build(json.loads(text))
        identity, uplink = identity_of(mechanism.priced_as).hex(), Uplink(mechanism)
        return ProposedMechanism(mechanism, identity, family_of(mechanism), uplink)
    except QuietbitError as error:
        raise InvalidParameter(f"The described mechanism is refused: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, ArithmeticError) as error:
        raise InvalidParameter(f"The description is of no mechanism ({type(error).__name__}).") from error
