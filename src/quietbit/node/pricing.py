"""From the server's description to a mechanism and its price: built, certified and priced here, within a time limit.

Idea     the server says which mechanism it will decode with, in full; nobody runs its calibration again. The node
         builds it from that description, takes its privacy from the numbers it will sample with, and believes
         nothing else. A description is the server's to choose: its size is limited, and so is the time that finding
         its price may take.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, final

from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.registry import build, describe, family_of, identity_of
from quietbit.node.policy import NotAllowed
from quietbit.privacy.cost import Cost
from quietbit.privacy.guarantee import Adjacency, Trust, Unit
from quietbit.wire.uplink import Uplink

__all__ = ["MOST_DESCRIPTION", "ProposedMechanism", "description_of", "release_cost", "text_of", "within"]

MOST_DESCRIPTION = 2**18
Found = TypeVar("Found")


class _Late(BaseException):
    """Ends a thread whose answer nobody waits for."""


@final
@dataclass(frozen=True, slots=True, eq=False)
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
        rule = f"at most {MOST_DESCRIPTION} characters"
        require(isinstance(text, str) and len(text) <= MOST_DESCRIPTION, "description of the mechanism", "more", rule)
        return _offer(text)

    @property
    def description(self) -> Any:
        """Plain values that rebuild it."""
        return describe(self.mechanism.priced_as)

    def cost(self, adjacency: Adjacency, honest: int, unit: Unit = Unit.CLIENT) -> Cost:
        """What one release costs, alone (0) or as part of a sum; refused where no number can say it."""
        try:
            return _cost(self.identity, self.mechanism.priced_as, adjacency, honest, unit)
        except QuietbitError:
            raise
        except (ArithmeticError, ValueError) as error:  # numbers so large or small that no account can hold them
            raise InvalidParameter(f"The described mechanism has no cost ({type(error).__name__}).") from error


def description_of(mechanism: Mechanism) -> str:
    """One line of JSON that `ProposedMechanism.read` reads."""
    return text_of(describe(mechanism))


def text_of(description: Any) -> str:
    """The one line of JSON for a description, by which a process knows what it has built."""
    return json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)


def within(seconds: float, work: Callable[[], Found]) -> Found:
    """What ``work`` returns or raises; refused where that takes longer, and the work is given up."""
    found: list[Found] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        # The thread ends at its next step: what it computes is of bounded size, how often it does so is not.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Late))
        raise NotAllowed("This node cannot find out in time what the mechanism costs.")
    if failed:
        raise failed[0]
    return found[0]


@lru_cache(maxsize=64)
def _offer(text: str) -> ProposedMechanism:
    try:
        mechanism = build(json.loads(text))
        identity, uplink = identity_of(mechanism.priced_as).hex(), Uplink(mechanism)
        return ProposedMechanism(mechanism, identity, family_of(mechanism), uplink)
    except QuietbitError as error:
        raise InvalidParameter(f"The described mechanism is refused: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, ArithmeticError) as error:
        raise InvalidParameter(f"The description is of no mechanism ({type(error).__name__}).") from error


# An identity names a mechanism: its cost is found once in a process, and is one object, by which an account knows it.
_COSTS: dict[tuple[str, Adjacency, int, Unit], Cost] = {}
_MOST_COSTS = 4096


def release_cost(mechanism: Mechanism, adjacency: Adjacency, honest: int, unit: Unit = Unit.CLIENT) -> Cost:
    """What one release costs, alone (0) or as part of a sum that counts on ``honest`` clients."""
    mechanism = mechanism.priced_as
    return _cost(identity_of(mechanism).hex(), mechanism, adjacency, honest, unit)


def _cost(identity: str, mechanism: Mechanism, adjacency: Adjacency, honest: int, unit: Unit) -> Cost:
    key = identity, adjacency, honest, unit
    if key not in _COSTS:
        if unit is Unit.SAMPLE:
            found = _sample_cost(mechanism, adjacency, honest)
        else:
            found = summable(mechanism).sum_privacy(honest, adjacency) if honest else mechanism.privacy(adjacency)
        if len(_COSTS) >= _MOST_COSTS:
            _COSTS.clear()
        _COSTS[key] = found
    return _COSTS[key]


def _sample_cost(mechanism: Mechanism, adjacency: Adjacency, honest: int) -> Cost:
    """What a release costs one sample of the site: of a batch by its own price, of any update as if it were replaced.

    Whatever a sample's change makes of an update, another one in the same ball comes of it.
    """
    if mechanism.batch and not honest:
        return mechanism.privacy(adjacency, mechanism.batch)
    which = Adjacency.REPLACE_ONE
    whole = summable(mechanism).sum_privacy(honest, which) if honest else mechanism.privacy(which)
    trust = Trust.SECURE_AGGREGATION if honest else Trust.LOCAL
    return whole.bare().of(which, Unit.SAMPLE, trust, 1)
