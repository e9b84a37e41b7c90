"""Masked sums: the server sees the sum of all clients' codes, and no client's.

Idea     a sum is the collector of a round (`federation.masked_sum`), made here from the plan; a
         client answers each of its steps. Sums are priced at k honest clients.

Every node that was asked for its vector and did not decline is counted as having released, sum or
no sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, final

from attrs import frozen

from quietbit.errors import require
from quietbit.federation.fields import Real, Whole, Word, choice
from quietbit.federation.masked_sum import Masked, Members
from quietbit.federation.messages import SUM, read_fields
from quietbit.federation.part import Part, Scope
from quietbit.federation.record import RoundReport
from quietbit.federation.terms import RunForecast, Say, Section, Terms, given
from quietbit.mechanism.abilities import summable
from quietbit.mechanism.registry import AUTO
from quietbit.node.request import SumPart
from quietbit.secagg.identity import MemberList
from quietbit.secagg.plan import ServerModel, SumPlan, plan_of_round
from quietbit.target import MOST_CLIENTS

__all__ = ["OF_SUMS", "MaskedSums", "SecureAggregation"]

TIMEOUT = 600.0
OF_SUMS = "imvu"  # the family that is calibrated for sums, and that auto chooses for them
_clients = Whole(2, MOST_CLIENTS)


@final
@frozen
class SecureAggregation(Section):
    """``[secure-aggregation]``: releases are summed behind masks.

    A sum needs at least ``threshold`` clients, and costs what ``honest_clients`` of them hide.
    ``adversary`` is the server that sums are secret from: ``active``, one that lies (nodes have
    identities), or ``honest-but-curious``, one that follows the protocol. A simulation sums its
    cohort, and needs no field.
    """

    title: ClassVar[str] = "secure_aggregation"
    needs: ClassVar[str] = "members"
    shares_rows: ClassVar[bool] = True

    threshold: int | None = choice(_clients)
    adversary: str | None = choice(Word(*(model.value for model in ServerModel)))
    honest_clients: int | None = choice(_clients)
    timeout: float = choice(Real(), TIMEOUT)

    def check(self) -> None:
        """Refuse more honest clients than a sum has."""
        if self.threshold is not None and self.honest_clients is not None:
            rule = f"at most {self.threshold}, the threshold"
            require(
                self.honest_clients <= self.threshold,
                "secure_aggregation.honest_clients",
                self.honest_clients,
                rule,
            )

    def check_plan(self, plan: Terms) -> None:
        """Refuse sums of too few or too many clients, and mechanisms without an account of sums."""
        most = plan.summed_clients or MOST_CLIENTS
        fits = self.honest_clients is not None and self.honest_clients <= most
        require(
            fits,
            "secure_aggregation.honest_clients",
            self.honest_clients,
            f"a whole number from 2 to {most}",
        )
        chosen = plan.mechanism
        require(chosen.bits in (None, 1), "mechanism.bits", chosen.bits, "1 or left out for sums")
        if chosen.calibrated:
            rule = "left out under secure aggregation, where it follows from the budget"
            require(chosen.beta in (None, 1.0), "mechanism.beta", chosen.beta, rule)
            require(not chosen.clamp, "mechanism.clamp", chosen.clamp, rule)
            rule = f"{OF_SUMS} to meet a budget by sums"
            require(chosen.name in (OF_SUMS, AUTO), "mechanism", chosen.name, rule)

    def check_engine(self, plan: Terms) -> None:
        """Require the fewest clients of a sum, and what the server may do."""
        rule = " for sums: the fewest clients that a sum is made of"
        given(plan, "secure_aggregation.threshold", rule)
        rule = " for sums: active (the server may lie) or honest-but-curious"
        given(plan, "secure_aggregation.adversary", rule)

    def sizes(self) -> dict[str, Any]:
        """Return what clients of a sum are told of it, whatever the step."""
        return {
            "threshold": self.threshold,
            "honest": self.honest_clients,
            "server": str(self.adversary),
        }

    @property
    def active(self) -> bool:
        """Whether sums are secret from a malicious server."""
        return self.adversary == ServerModel.ACTIVE.value

    def client(self, terms: Terms, asked: str) -> MaskedSums | None:
        """Return the part of a turn that sends an update: answers are not summed."""
        return None if asked else MaskedSums(self, terms, None)

    def part(self, plan: Terms, say: Say, resource: Any = None) -> MaskedSums:
        """Return the part that sums releases; ``resource`` is its list of members."""
        fits = isinstance(resource, MemberList) if self.active else resource is None
        rule = "left out unless quietbit.secure-aggregation.adversary is active"
        if self.active:
            rule = "a MemberList where quietbit.secure-aggregation.adversary is active"
        require(fits, "members", type(resource).__name__, rule)
        return MaskedSums(self, plan, resource)

    def forecast(self, run: RunForecast) -> str | None:
        """Return a warning where the nodes of a round are too few or too many for a sum."""
        least = self.threshold
        if least is None or least <= run.asked <= 2 * least - 1:
            return None
        needs = f"a sum needs from {least} to {2 * least - 1}, so there will be none"
        asks = f"a round asks {run.asked} nodes"
        return f"quietbit.secure-aggregation.threshold is {least}, and {asks}: {needs}."

    def note(self, entry: RoundReport) -> str:
        """Return how many nodes took each step of a round's sum."""
        return " > ".join(map(str, entry.steps))

    def assumption(self) -> str:
        """Return how many honest clients the guarantee counts on."""
        return f"It counts on {self.honest_clients} honest clients in every sum."


@final
class MaskedSums(Part):
    """Both halves: what a client is asked in one step, and the collector of a server's round.

    The server remembers the members of rounds; most steps need no app on a client.
    """

    section: ClassVar[str] = "secure_aggregation"

    def __init__(self, masks: SecureAggregation, plan: Terms, members: MemberList | None) -> None:
        """Start without nodes that have said who they are; ``members`` lists all."""
        self._masks = masks
        self._plan = plan
        self._members = None if members is None else Members(members)

    def read(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the step of the sum that is asked for; refuse a message without one."""
        step = read_fields(
            records.get(SUM),
            {"version", "step", "clients", "number", "table"},
            "The server's message must carry a step of a masked sum, and does not: make its "
            "strategy a PrivateStrategy with quietbit.secure-aggregation.",
        )
        asked = {name: step[name] for name in ("step", "clients", "number", "table")}
        return {"sum": SumPart(**asked, **self._masks.sizes())}

    def collector(self, scope: Scope, description: str) -> Masked:
        """Return the collector of a round, whose mechanism all nodes are sent as a description."""
        plan_of = partial(self._sum_plan, scope, description)
        return Masked(scope.mechanism, scope.clip, plan_of, self._masks.timeout, self._members)

    def _sum_plan(
        self,
        scope: Scope,
        description: str,
        clients: int,
        members: tuple[bytes, ...] | None,
    ) -> SumPlan:
        """Return the plan of a round's sum, as its clients make it of what they are asked."""
        rule = f"at least {self._masks.threshold}, the threshold"
        require(clients >= 2, "number of clients in the sum", clients, rule)
        target = self._plan.update_target
        return plan_of_round(
            run=scope.run,
            round=scope.number,
            dimension=scope.mechanism.ball.dimension,
            mechanism=description,
            clip=float(scope.clip),  # as clients read it
            unit=self._plan.unit.value,
            adjacency=self._plan.adjacency.value,
            epsilon=target.epsilon,
            delta=target.delta,
            codes=summable(scope.mechanism).layout.count,
            members=members,
            clients=clients,
            **self._masks.sizes(),
        )
