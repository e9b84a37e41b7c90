"""What a server may ask a node, in words of no engine: one release of a mechanism, or one step of a masked sum.

Idea     a request is plain values, checked when it is read, so that the same one can come from
         Flower's record, over a gatekeeper's socket or from a program of one's own. It describes
         the mechanism that the server will decode with in full: the node builds it from that, takes
         its privacy from the numbers it will sample with, and believes nothing else. A release goes
         back in a frame that says for which run, round and node it was made.
Symbols  n: clients of a sum, numbered from 1; t: threshold; k: honest clients that the run counts
         on.
Source   the steps are those of `quietbit.secagg.client`, their tables of `quietbit.secagg.codec`;
         before the first, where the server may lie, `identity` asks once in a run for the node's
         public signing key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, final

from attrs import frozen

from quietbit.errors import (
    InvalidParameter,
    QuietbitError,
    check_int,
    check_real,
    refuse_payload,
    require,
)
from quietbit.kernel.base import MAX_DIMENSION
from quietbit.mechanism.abilities import Batches, Summable
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import build, describe, described_family, family_of, identity_of
from quietbit.node.ledger import EVALUATIONS, text_of
from quietbit.node.policy import ANSWERING
from quietbit.node.refusal import NotAllowed
from quietbit.privacy.cost import Cost
from quietbit.secagg.exposure import SPARSE_FROM
from quietbit.secagg.plan import ServerModel, SumPlan
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit, check_delta
from quietbit.wire.uplink import Uplink

__all__ = [
    "ALONE",
    "CONFIRM",
    "IDENTITY",
    "KEYS",
    "SHARES",
    "STEPS",
    "UNMASK",
    "VECTOR",
    "Framed",
    "ProposedMechanism",
    "Request",
    "SumPart",
    "description_of",
    "noted_run",
    "run_name",
    "sum_plan",
]

IDENTITY = "identity"
ALONE = "alone"  # no step of the sum: a release beside it, which the server sees
KEYS, SHARES, VECTOR, CONFIRM, UNMASK = STEPS = ("keys", "shares", "vector", "confirm", "unmask")
MOST_ROUNDS = 2**32 - 1
MOST_ID = 2**64 - 1
SAME = (
    "run",
    "node",
    "client",
    "dimension",
    "epsilon",
    "delta",
    "adjacency",
    "unit",
)  # in all rounds of a node's run
MOST_READ = 256  # mechanisms that a process keeps: as many as a ledger holds
MOST_DESCRIPTION = (
    2**18
)  # characters, and with it the work: the largest took 0.3 s to build and price
MAGIC = b"QBR"  # then round, run and node, little-endian, and the payload
VERSION = 2
FRAME = struct.Struct("<3sBIQQ")


@final
@dataclass(frozen=True, slots=True)
class SumPart:
    """The part of a request that is about a masked sum; ``table`` is what the server forwards from the others.

    A release beside the sum (`ALONE`) is asked for within the same account, and has no other part
    in it.
    """

    step: str
    clients: int
    number: int
    threshold: int
    honest: int
    server: str
    neighbours: int | None = None
    share_threshold: int | None = None
    table: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what is not a step of a sum."""
        active = ServerModel(self.server) is ServerModel.ACTIVE
        known = [step for step in (*STEPS, ALONE) if active or step != CONFIRM] + (
            [IDENTITY] if active else []
        )
        require(self.step in known, "step of the sum", self.step, "one of " + ", ".join(known))
        require(
            isinstance(self.table, bytes), "table of the step", type(self.table).__name__, "bytes"
        )
        put = object.__setattr__
        put(self, "clients", check_int(self.clients, "clients of the sum", 2, MOST_CLIENTS))
        put(self, "number", check_int(self.number, "number of the client", 1, self.clients))
        put(self, "threshold", check_int(self.threshold, "threshold of the sum", 2, MOST_CLIENTS))
        put(self, "honest", check_int(self.honest, "honest clients of the sum", 2, self.threshold))

    @property
    def active(self) -> bool:
        """Whether the server may lie."""
        return self.server == ServerModel.ACTIVE.value


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One release that is asked for: of which mechanism, for which run and round, within which budget of the run.

    ``client`` is the node's number among simulated ones, for seeded randomness alone; ``sum`` is
    there if the release goes into a masked sum.
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

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        put = object.__setattr__
        put(self, "round", check_int(self.round, "round", 1, MOST_ROUNDS))
        if not isinstance(self.mechanism, str) or len(self.mechanism) > MOST_DESCRIPTION:
            raise InvalidParameter.of(
                "description of the mechanism", f"text of at most {MOST_DESCRIPTION} characters"
            )
        said = tuple(getattr(self, name) for name in SAME)
        try:
            terms = _terms(*said)
        except TypeError:  # values that cannot be remembered, and that no request has
            terms = _terms.__wrapped__(*said)
        for name, value in zip(SAME, terms, strict=True):
            put(self, name, value)

    @property
    def part(self) -> SumPart:
        """What is asked about a masked sum; refused where it is about none."""
        if self.sum is None:
            raise InvalidParameter("The request must be about a masked sum, and is not.")
        return self.sum

    @property
    def trust(self) -> Trust:
        """Who sees the release."""
        return Trust.LOCAL if self.sum is None else Trust.SECURE_AGGREGATION

    @property
    def cap(self) -> Target:
        """The run's own budget: a node holds it, too."""
        return _cap(self.epsilon, self.delta, self.adjacency, self.unit, self.trust)

    @property
    def terms(self) -> bytes:
        """Everything in it that all clients of a sum must have been asked alike: all but who is asked, and the step."""
        values = {
            name: value for name, value in asdict(self).items() if name not in ("node", "client")
        }
        part = values["sum"] or {}
        values["sum"] = {
            name: value for name, value in part.items() if name not in ("step", "number", "table")
        }
        return text_of(values).encode("ascii")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = asdict(self)
        if self.sum is not None:
            values["sum"]["table"] = self.sum.table.hex()
        return values

    @classmethod
    def from_json(cls, values: Any) -> Request:
        """Read plain values; any others are refused."""
        part = _exactly(cls, values)["sum"]
        if part is not None:
            text = _exactly(SumPart, part)["table"]
            try:
                part = {**part, "table": bytes.fromhex(text)}
            except (TypeError, ValueError) as error:
                raise InvalidParameter("table of the step must be hexadecimal.") from error
            part = SumPart(**part)
        return cls(**{**values, "sum": part})


def _exactly(kind: type[Request | SumPart], values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping) or set(values) != {field.name for field in fields(kind)}:
        raise InvalidParameter(f"The request must have exactly the fields of a {kind.__name__}.")
    return values


@lru_cache(maxsize=64, typed=True)  # the same in all rounds of a run
def _terms(
    run: Any,
    node: Any,
    client: Any,
    dimension: Any,
    epsilon: Any,
    delta: Any,
    adjacency: Any,
    unit: Any,
) -> tuple[Any, ...]:
    return (
        check_int(run, "run", 0, MOST_ID),
        check_int(node, "node", 0, MOST_ID),
        None if client is None else check_int(client, "partition-id", 0),
        check_int(dimension, "dimension", 1, MAX_DIMENSION),
        check_real(epsilon, "epsilon of the run"),
        check_delta(delta),
        Adjacency(adjacency).value,
        Unit(unit).value,
    )


@lru_cache(maxsize=64)
def _cap(epsilon: float, delta: float, adjacency: str, unit: str, trust: Trust) -> Target:
    return Target(epsilon, delta, adjacency, unit=unit, trust=trust)


@final
@frozen(eq=False)
class ProposedMechanism:
    """A mechanism that a server asks for: built from its description, with its identity (hexadecimal) and family.

    Where a clip moves, the mechanisms of all rounds have one price: ``identity`` and
    ``description`` are then those of the one that stands for them (`priced_as`), so that the ledger
    notes it once.
    """

    mechanism: Mechanism
    identity: str
    family: str
    uplink: Uplink

    @staticmethod
    @lru_cache(maxsize=MOST_READ)
    def read(text: str, allowed: tuple[str, ...] | None = None) -> ProposedMechanism:
        """Build it, once in a process; a description that is not a known mechanism's is refused.

        With ``allowed``, names of families, any other family is refused before anything of it is
        imported or built.
        """
        try:
            description = json.loads(text)
            family = described_family(description)
            if allowed is not None and family not in (*allowed, *ANSWERING):
                raise NotAllowed(
                    f"The description is of the family {family[:40]!r}.", rule="mechanisms"
                )
            mechanism = build(description, allowed)
            identity = identity_of(mechanism.priced_as).hex()
            return ProposedMechanism(mechanism, identity, family_of(mechanism), Uplink(mechanism))
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
                f"The description is of no mechanism ({type(error).__name__})."
            ) from error

    @property
    def description(self) -> Any:
        """Plain values that rebuild it."""
        return describe(self.mechanism.priced_as)

    def cost(self, adjacency: Adjacency, honest: int, unit: Unit = Unit.CLIENT) -> Cost:
        """Return what one release costs, alone (0) or as part of a sum; refused where no number can say it.

        Of a batch, a sample costs what the batch says. Of any other update it costs what replacing
        the update does: whatever a sample's change makes of an update, another one in the same ball
        comes of it.
        """
        mechanism = self.mechanism.priced_as
        try:
            batches = Batches.find(mechanism)
            if unit is Unit.SAMPLE and batches is not None and not honest:
                return mechanism.privacy(adjacency, batches.batch)
            which = adjacency if unit is Unit.CLIENT else Adjacency.REPLACE_ONE
            whole = mechanism.privacy(which)
            if honest:
                whole = Summable.of(mechanism).sum_privacy(honest, which)
            if unit is Unit.CLIENT:
                return whole
            return whole.bare().of(
                which, Unit.SAMPLE, Trust.SECURE_AGGREGATION if honest else Trust.LOCAL, 1
            )
        except QuietbitError:
            raise
        except (
            ArithmeticError,
            ValueError,
        ) as error:  # numbers so large or small that no account can hold them
            raise InvalidParameter(
                f"The described mechanism has no cost ({type(error).__name__})."
            ) from error


def description_of(mechanism: Mechanism) -> str:
    """Return one line of JSON that `ProposedMechanism.read` reads."""
    return text_of(describe(mechanism))


def noted_run(run: int, family: str) -> str:
    """Return what ledgers and sums call a run: an evaluation and an update of one round are two releases."""
    return f"{run}{EVALUATIONS}" if family in ANSWERING else str(run)


def sum_plan(request: Request, mechanism: Mechanism, members: tuple[bytes, ...] | None) -> SumPlan:
    """Return the masked sum that is asked for, of a mechanism's codes; refuse one that the threshold does not fit."""
    part = request.part
    name = f"quietbit/{noted_run(request.run, family_of(mechanism))}/{request.round}".encode()
    near = part.neighbours, part.share_threshold
    if part.neighbours is not None and part.clients < max(SPARSE_FROM, part.neighbours + 1):
        near = None, None  # a cohort so small deals with everybody
    codes = mechanism.layout
    sizes = part.clients, part.threshold, codes.count
    return SumPlan(*sizes, name, 2**codes.bits - 1, *near, members, request.terms)


def run_name(run: int) -> bytes:
    """Return the name of a run from which rows that all clients of a round keep are derived (`Mechanism.for_round`)."""
    return str(run).encode()


@final
@dataclass(frozen=True, slots=True)
class Framed:
    """A payload bound to a run, a round and a node."""

    run: int
    round: int
    node: int
    payload: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Return the frame followed by the payload."""
        return FRAME.pack(MAGIC, VERSION, self.round, self.run, self.node) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Framed:
        """Read a release; the payload is left for the aggregator to check."""
        if len(data) < FRAME.size:
            refuse_payload("length of the release", f"at least {FRAME.size} bytes", len(data))
        magic, version, number, run, node = FRAME.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            refuse_payload(
                "magic and version of the release",
                f"{MAGIC!r} and {VERSION}",
                f"{magic!r} and {version}",
            )
        return cls(run, number, node, memoryview(data)[FRAME.size :])

    def expect(self, run: int, number: int, node: int) -> None:
        """Refuse a release that was made for another run or round, or by another node."""
        for name, mine, found in (
            ("run", run, self.run),
            ("round", number, self.round),
            ("node", node, self.node),
        ):
            if mine != found:
                refuse_payload(f"{name} of the release", f"{mine}", found)
