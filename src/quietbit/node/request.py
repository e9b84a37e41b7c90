"""What a server asks a node, without an engine: one release, or one step of a masked sum.

Idea     a request is plain values, checked when it is read: the same one can come from Flower's
         record, over a gatekeeper's socket or from any program. It describes in full the mechanism
         that the server will decode with, and the clip. The node builds the mechanism from the
         description and computes the cost from the numbers that it will sample with; it trusts
         nothing else.
Symbols  n: clients of a sum, numbered from 1; t: threshold; k: honest clients, as the run assumes.
Source   the steps are those of `quietbit.secagg.client`, their tables of `quietbit.secagg.codec`.
         In the active model, `identity` comes first, once per run, and returns the node's public
         signing key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum, unique
from functools import lru_cache, partial
from typing import Any, final

from attrs import field, frozen

from quietbit.errors import (
    InvalidParameter,
    QuietbitError,
    check_int,
    check_real,
    require,
)
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.abilities import Batches, SharedRows, Summable
from quietbit.mechanism.ball import LEAST_CLIP, MOST_CLIP
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import (
    build,
    describe,
    described_family,
    family_of,
    identity_of,
    noted,
    noted_identity,
)
from quietbit.node.ledger import EVALUATIONS, RESPONSE, text_of
from quietbit.node.refusal import NotAllowed
from quietbit.privacy.cost import Cost
from quietbit.secagg.plan import ServerModel, SumPlan, plan_of_round
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit
from quietbit.wire.uplink import Uplink

__all__ = [
    "STEPS",
    "ProposedMechanism",
    "Request",
    "Step",
    "SumPart",
    "description_of",
    "noted_run",
    "run_name",
    "sum_plan",
    "uplink_of",
]

MOST_ROUNDS = 2**32 - 1
MOST_ID = 2**64 - 1
MOST_READ = 256  # mechanisms that a process caches: as many as a ledger holds
# Characters. This bounds the work, too: the largest description took 0.3 s to build.
MOST_DESCRIPTION = 2**18


@final
@unique
class Step(StrEnum):
    """What a server asks in a masked sum, in words of the wire."""

    IDENTITY = "identity"
    KEYS = "keys"
    SHARES = "shares"
    VECTOR = "vector"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    ALONE = "alone"  # not a step of the sum: a release beside it, which the server sees


STEPS = (Step.KEYS, Step.SHARES, Step.VECTOR, Step.CONFIRM, Step.UNMASK)  # in their order


@final
@dataclass(frozen=True, slots=True)
class SumPart:
    """The part of a request about a masked sum; ``table`` is what the server forwards.

    A release beside the sum has the step `Step.ALONE`: it counts in the same account and takes no
    part in the sum.
    """

    step: str
    clients: int
    number: int
    threshold: int
    honest: int
    server: str
    table: bytes = b""

    def __post_init__(self) -> None:
        """Refuse an unknown step, and numbers that fit no sum."""
        known = [Step.KEYS, Step.SHARES, Step.VECTOR, Step.UNMASK, Step.ALONE]
        if ServerModel(self.server) is ServerModel.ACTIVE:
            known += [Step.CONFIRM, Step.IDENTITY]
        require(self.step in known, "step of the sum", self.step, "one of " + ", ".join(known))
        is_bytes = isinstance(self.table, bytes)
        require(is_bytes, "table of the step", type(self.table).__name__, "bytes")
        put = object.__setattr__
        put(self, "clients", check_int(self.clients, "clients of the sum", 2, MOST_CLIENTS))
        put(self, "number", check_int(self.number, "number of the client", 1, self.clients))
        put(self, "threshold", check_int(self.threshold, "threshold of the sum", 2, MOST_CLIENTS))
        put(self, "honest", check_int(self.honest, "honest clients of the sum", 2, self.threshold))

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.server == ServerModel.ACTIVE.value


def _client(value: Any) -> int | None:
    return None if value is None else check_int(value, "partition-id", 0)


# How each number or word of a request is read.
READERS: dict[str, Callable[[Any], Any]] = {
    "run": partial(check_int, name="run", low=0, high=MOST_ID),
    "round": partial(check_int, name="round", low=1, high=MOST_ROUNDS),
    "node": partial(check_int, name="node", low=0, high=MOST_ID),
    "client": _client,
    "dimension": partial(check_int, name="dimension", low=1, high=MAX_DIMENSION),
    "epsilon": partial(check_real, name="epsilon of the run"),
    "delta": partial(check_real, name="delta", at_least=0.0, at_most=1.0),  # 1 is refused by `cap`
    "adjacency": lambda value: Adjacency(value).value,
    "unit": lambda value: Unit(value).value,
    "clip": partial(check_real, name="clip", at_least=LEAST_CLIP, at_most=MOST_CLIP),
}


@final
@dataclass(frozen=True, slots=True)
class Request:
    """A request for one release of a mechanism, in a round of a run, within the run's budget.

    ``clip`` is the largest norm of an update, and the unit of what the mechanism decodes.
    ``client`` is the node's number among simulated ones, used for seeded randomness only; ``sum``
    is given if the release goes into a masked sum.
    """

    run: int
    round: int
    node: int
    dimension: int
    mechanism: str
    epsilon: float
    delta: float
    adjacency: str
    client: int | None = None
    sum: SumPart | None = None
    unit: str = Unit.CLIENT.value
    clip: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values of the wrong type or range."""
        if not isinstance(self.mechanism, str) or len(self.mechanism) > MOST_DESCRIPTION:
            rule = f"text of at most {MOST_DESCRIPTION} characters"
            raise InvalidParameter.of("description of the mechanism", rule)
        for name, read in READERS.items():
            object.__setattr__(self, name, read(getattr(self, name)))

    def proposed(self, allowed: tuple[str, ...] | None = None) -> ProposedMechanism:
        """Return the described mechanism, of a family that is ``allowed``; else refuse it."""
        return ProposedMechanism.read(self.mechanism, allowed)

    @property
    def part(self) -> SumPart:
        """The part about a masked sum; refused where there is none."""
        if self.sum is None:
            raise InvalidParameter.of("sum", "given for a step of a masked sum", None)
        return self.sum

    @property
    def trust(self) -> Trust:
        """The trust model: whether the server sees the release, or a masked sum only."""
        return Trust.LOCAL if self.sum is None else Trust.SECURE_AGGREGATION

    @property
    def cap(self) -> Target:
        """The run's own budget, which the node enforces besides its own."""
        return _cap(self.epsilon, self.delta, self.adjacency, self.unit, self.trust)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        values = asdict(self)
        if self.sum is not None:
            values["sum"]["table"] = self.sum.table.hex()
        return values

    @classmethod
    def from_json(cls, values: Any) -> Request:
        """Read the plain values of `to_json`; refuse anything else."""
        part = _exactly(cls, values)["sum"]
        if part is not None:
            text = _exactly(SumPart, part)["table"]
            try:
                part = {**part, "table": bytes.fromhex(text)}
            except (TypeError, ValueError) as error:
                kind = type(text).__name__
                raise InvalidParameter.of(
                    "table of the step", "hexadecimal text", f"a {kind}"
                ) from error
            part = SumPart(**part)
        return cls(**{**values, "sum": part})


def _exactly(kind: type[Request | SumPart], values: Any) -> Mapping[str, Any]:
    """Return the values if they are a mapping with exactly the fields of ``kind``."""
    names = [field.name for field in fields(kind)]
    if not isinstance(values, Mapping) or set(values) != set(names):
        name = "request" if kind is Request else "sum of the request"
        raise InvalidParameter.of(name, "an object with the fields " + ", ".join(names))
    return values


@lru_cache(maxsize=64)
def _cap(epsilon: float, delta: float, adjacency: str, unit: str, trust: Trust) -> Target:
    return Target(epsilon, delta, adjacency, unit=unit, trust=trust)


@final
@frozen(eq=False)
class ProposedMechanism:
    """A mechanism built from a request's description, with its identity (hexadecimal) and family.

    Where rows are those of a round, the mechanisms of all rounds have one cost: ``identity`` and
    ``description`` are then those of the mechanism that stands for them (`priced_as`), so that the
    ledger notes it once.
    """

    mechanism: Mechanism
    identity: str
    family: str
    batches: Batches | None = field(init=False)  # the mechanism, where it releases batches
    rows: SharedRows | None = field(init=False)  # and where all clients keep the same rows
    takes_turns: bool = field(init=False)  # whether it is for some nodes of a round alone

    @batches.default
    def _batches(self) -> Batches | None:
        return Batches.find(self.mechanism)

    @rows.default
    def _rows(self) -> SharedRows | None:
        return SharedRows.find(self.mechanism)

    @takes_turns.default
    def _turns(self) -> bool:
        return type(self.mechanism).is_turn_of is not Mechanism.is_turn_of

    @property
    def steps(self) -> int:
        """The number of batches per release; 1 for a release of an update."""
        return 1 if self.batches is None else self.batches.steps

    @property
    def sampling_rate(self) -> float:
        """The probability with which a sample is in a batch; 1 for a release of an update."""
        return 1.0 if self.batches is None else self.batches.sampling_rate

    @staticmethod
    @lru_cache(maxsize=MOST_READ)
    def read(text: str, allowed: tuple[str, ...] | None = None) -> ProposedMechanism:
        """Build the described mechanism, once per process; refuse any other description.

        With ``allowed``, names of families, any other family is refused before any of its code is
        imported.
        """
        try:
            description = json.loads(text)
            family = described_family(description)
            if allowed is not None and family not in (*allowed, RESPONSE):
                raise NotAllowed(
                    f"The mechanism is of the family {family[:40]!r}.", rule="mechanisms"
                )
            mechanism = build(description, allowed)
            identity = identity_of(mechanism.priced_as).hex()
            return ProposedMechanism(mechanism, identity, family_of(mechanism))
        except NotAllowed:
            raise
        except QuietbitError as error:
            raise InvalidParameter(f"The described mechanism is refused: {error}") from error
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            ArithmeticError,
        ) as error:
            raise InvalidParameter(
                f"The description of the mechanism cannot be read ({type(error).__name__})."
            ) from error

    @staticmethod
    def noted(description: Mapping[str, Any]) -> ProposedMechanism:
        """Build the mechanism that a ledger notes, under the identity of what is noted."""
        mechanism = noted(description)
        return ProposedMechanism(mechanism, noted_identity(description), family_of(mechanism))

    @property
    def description(self) -> Any:
        """Plain values from which the mechanism is built again."""
        return describe(self.mechanism.priced_as)

    def cost(self, adjacency: Adjacency, honest: int, unit: Unit = Unit.CLIENT) -> Cost:
        """Return the cost of one release: alone (0), or in a sum with ``honest`` honest clients.

        For the unit sample, a batch has a cost per sample. Any other update costs what replacing
        the whole update does: changing a sample gives some other update in the same ball. Refuse a
        mechanism whose cost is not a number.
        """
        mechanism = self.mechanism.priced_as
        try:
            batches = Batches.find(mechanism)
            if unit is Unit.SAMPLE and batches is not None and not honest:
                return mechanism.privacy(adjacency, batches.batch)
            which = adjacency if unit is Unit.CLIENT else Adjacency.REPLACE_ONE
            cost = mechanism.privacy(which)
            trust = Trust.LOCAL
            if honest:
                cost = Summable.of(mechanism).sum_privacy(honest, which)
                trust = Trust.SECURE_AGGREGATION
            if unit is Unit.CLIENT:
                return cost
            return cost.bare().of(which, Unit.SAMPLE, trust, 1)
        except QuietbitError:
            raise
        except (ArithmeticError, ValueError) as error:  # from numbers that are too large or small
            raise InvalidParameter(
                f"The cost of the described mechanism cannot be computed ({type(error).__name__})."
            ) from error


@lru_cache(maxsize=MOST_READ)
def uplink_of(proposed: ProposedMechanism, clip: float) -> Uplink:
    """Return the way of a mechanism's releases at a clip; those of recent ones are kept."""
    return Uplink(proposed.mechanism, clip=clip)


def description_of(mechanism: Mechanism, clip: float = 1.0) -> str:
    """Return the mechanism's description: one line of JSON that `ProposedMechanism.read` reads.

    Clients that look a description up in a table of their owner's are sent that at a ``clip``.
    """
    return text_of(describe(mechanism, clip))


def noted_run(run: int, family: str) -> str:
    """Return a run's name in ledgers and sums; its evaluations have a name of their own."""
    return f"{run}{EVALUATIONS}" if family == RESPONSE else str(run)


def sum_plan(request: Request, mechanism: Mechanism, members: tuple[bytes, ...] | None) -> SumPlan:
    """Return the plan of the requested sum of a mechanism's codes; refuse a wrong threshold.

    All clients agree on all of a request but the node and the step.
    """
    values = asdict(request)
    sizes = asdict(request.part)
    for name in ("node", "client", "sum"):
        del values[name]
    for name in ("step", "number", "table"):
        del sizes[name]
    return plan_of_round(codes=mechanism.layout.count, members=members, **values, **sizes)


def run_name(run: int) -> bytes:
    """Return a run's name, from which `Mechanism.for_round` derives rows that all clients share."""
    return str(run).encode()
