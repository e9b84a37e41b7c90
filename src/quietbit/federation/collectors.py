"""What happens to the releases of a round: from the nodes that are asked to one mean.

Idea     a collector says what to ask next (`Query`), reads what comes, and has the mean at the end.
         It knows no engine and counts nobody: `federation.round` does. `Plain` is a mean of
         releases that the server sees; masked sums are in `masked_sum.py`; a simulation without
         privacy, or with a trusted server, has one of its own (`simulate/clients.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
from attrs import define, field, frozen

from quietbit._typing import FloatVector
from quietbit.errors import InvalidPayload
from quietbit.federation.messages import Node, Release, Reply, join_pieces
from quietbit.federation.part import Scope
from quietbit.mechanism.base import Answers
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Aggregator, Uplink

__all__ = ["Collector", "Plain", "Query", "Singles"]


@final
@frozen(eq=False)
class Query:
    """What is asked next: which nodes, and by which records of their own.

    ``releases`` says that apps are asked; else it is a ``step``, which ends after ``timeout``
    seconds.
    """

    nodes: tuple[Node, ...]
    records: Mapping[Node, Mapping[str, Any]] = field(factory=dict)
    step: str = ""
    releases: bool = True
    timeout: float | None = None


class Collector(ABC):
    """From the nodes of a round to the mean of their releases; ``result`` is what comes of them."""

    result: ClassVar[str] = "mean"

    _nodes: tuple[Node, ...] | None = None

    def start(self, nodes: Sequence[Node]) -> None:
        """Begin with the nodes of a round."""
        self._nodes = tuple(nodes)

    def next(self) -> Query | None:
        """Return what to ask now: all nodes, once; None at the end.

        Raises:
            QuietbitError: there will be no result.
        """
        nodes = self._nodes
        self._nodes = None
        return None if nodes is None else Query(nodes)

    def side_request(self, requests: int) -> Mapping[str, Any]:
        """Return the records of requests beside those for releases, of so many altogether."""
        return {}

    def answer(self, node: Node, reply: Reply) -> None:
        """Read the answer to a step; refuse one that is not valid."""
        raise InvalidPayload("no step was asked for.")

    def read(self, scope: Scope, reply: Reply) -> Any:
        """Return the payload of a release; refuse one of another run, round or node."""
        release = Framed.from_bytes(join_pieces(reply.records))
        release.expect(scope.run, scope.number, scope.name_of(reply.node))
        return release.payload

    @abstractmethod
    def decode(self, payload: Any) -> FloatVector:
        """Return the estimate that a payload is by itself."""

    @abstractmethod
    def add(self, release: Release) -> None:
        """Add a release; one that is not valid is refused, and changes nothing."""

    @abstractmethod
    def mean(self) -> FloatVector | None:
        """Return the mean of the releases; None where there is none."""

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is none."""
        return None

    def answers(self) -> Answers | None:
        """Return what nodes answered about the clip; None where nobody did."""
        return None

    def columns(self) -> Mapping[str, Any]:
        """Return columns of the round's report, in place of the round's own."""
        return {}

    def liars(self) -> Mapping[Node, str]:
        """Return the nodes that broke the protocol, with what they did."""
        return {}


@define(eq=False)
class Plain(Collector):
    """The mean of releases that the server sees one by one."""

    channel: Uplink
    _means: dict[float, Aggregator] = field(factory=dict, init=False)  # by weight

    def decode(self, payload: Any) -> FloatVector:
        """Return the estimate that a payload is by itself."""
        estimate: FloatVector = self.channel.receive([payload])
        return estimate

    def add(self, release: Release) -> None:
        """Add a release, with its weight; sums are of integers, so each weight has its own."""
        aggregator = self._means.get(release.weight)
        if aggregator is None:
            aggregator = self.channel.aggregator()
        aggregator.add(release.payload)
        self._means[release.weight] = aggregator

    def mean(self) -> FloatVector | None:
        """Return the mean of the releases; None where there is none."""
        return self._weighted(Aggregator.mean)

    def kept(self) -> FloatVector | None:
        """Return the mean on the rows that all nodes keep; None where there is none."""
        return self._weighted(Aggregator.kept)

    def _weighted(self, part: Callable[[Aggregator], FloatVector]) -> FloatVector | None:
        """Return the mean of a part of every sum, by weight times count."""
        if not self._means:
            return None
        if len(self._means) == 1:
            (aggregator,) = self._means.values()
            return part(aggregator)
        whole = sum(weight * aggregator.count for weight, aggregator in self._means.items())
        terms = (
            weight * aggregator.count / whole * part(aggregator)
            for weight, aggregator in self._means.items()
        )
        return np.asarray(sum(terms))

    def answers(self) -> Answers | None:
        """Return what nodes, all of weight 1, answered about the clip; None where nobody did."""
        for aggregator in self._means.values():
            return aggregator.answers()
        return None


@final
@define(eq=False)
class Singles(Plain):
    """Releases for an engine that averages: it takes the estimate of each, as it comes.

    With ``adds`` there is a mean of them here, too.
    """

    adds: bool = False
    _latest: tuple[FloatVector, float] | None = field(default=None, init=False)

    def add(self, release: Release) -> None:
        """Decode a release, and keep its estimate until it is taken."""
        estimate = self.decode(release.payload)
        if self.adds:
            super().add(release)
        self._latest = (estimate, release.weight)

    def latest(self) -> tuple[FloatVector, float] | None:
        """Return the estimate of the last release, and its weight; hand it over once."""
        latest = self._latest
        self._latest = None
        return latest
