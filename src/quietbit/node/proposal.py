"""What a request asks for, checked against the request itself and the owner's rules.

Idea     the ledger is not read here, so a refusal may tell the server what is wrong with its
         request. Refusals that depend on the ledger come later, as bare values
         (`quietbit.node.refusal`).
Symbols  k: the number of honest clients that a sum's cost assumes; 0 where the server sees the
         release.
"""

from __future__ import annotations

from typing import final

from attrs import frozen

from quietbit.errors import InvalidParameter, require
from quietbit.mechanism.base import Mechanism
from quietbit.mechanism.registry import identity_of
from quietbit.node.kinds import RESPONSE, SCOUT
from quietbit.node.policy import Rules
from quietbit.node.request import ProposedMechanism, Request, Step, noted_run, run_name

__all__ = ["Proposal", "propose"]


@final
@frozen(eq=False)
class Proposal:
    """The release that a request asks for: its mechanism, k, and the name its run is noted by."""

    mechanism: ProposedMechanism
    honest: int
    run: str


def propose(request: Request, rules: Rules) -> Proposal:
    """Return the release that a request asks for, without reading the ledger.

    Raises:
        NotAllowed: the owner's policy excludes the run, family, clip, rate or trust.
        InvalidParameter: the request contradicts itself; the sentence may leave.
    """
    part = request.sum
    threshold = None if part is None else part.threshold
    run_honest = None if part is None else part.honest
    honest = rules.honest_for(request.trust, threshold, run_honest)
    rules.check_request(str(request.run), request.dimension)
    proposed = request.proposed(rules.mechanisms)
    mechanism = proposed.mechanism
    dimension = mechanism.ball.dimension
    if request.dimension != dimension:
        rule = f"{dimension}, as in the description of the mechanism"
        raise InvalidParameter.of("dimension of the request", rule, request.dimension)
    _check_rows_of_round(proposed, request)
    _check_answer(proposed, request)
    _check_visibility(mechanism, request)
    if proposed.takes_turns:
        is_turn = mechanism.is_turn_of(run_name(request.run), request.round, request.node)
        rule = f"one that is the turn of node {request.node} in round {request.round}"
        require(is_turn, "mechanism", proposed.family, rule)
    rules.check(proposed.family, request.clip, proposed.sampling_rate)
    return Proposal(proposed, honest, noted_run(request.run, proposed.family))


def _check_rows_of_round(proposed: ProposedMechanism, request: Request) -> None:
    """Refuse rows that all clients share unless they are those of this round."""
    if proposed.rows is None:
        return
    mechanism = proposed.mechanism
    of_round = mechanism.for_round(run_name(request.run), request.round)
    identity = identity_of(mechanism)
    rule = f"the one whose shared rows are of round {request.round}, run {request.run}"
    require(identity_of(of_round) == identity, "mechanism", identity.hex()[:16], rule)


def _check_answer(proposed: ProposedMechanism, request: Request) -> None:
    """Refuse answers to evaluations and scouts in a form that would be missing in their account.

    The ledger finds answers by their kind, which a wrapped one hides; and whatever wraps a scout's
    answer would have the cost of a sum.
    """
    mechanism = proposed.mechanism
    name = type(mechanism).__name__
    if proposed.family in (RESPONSE, SCOUT) and mechanism.core is not mechanism:
        rule = "a plain one, without a wrapper"
        raise InvalidParameter.of("mechanism of an answer", rule, name)


def _check_visibility(mechanism: Mechanism, request: Request) -> None:
    """Refuse a release beside a sum that belongs into it, and the other way round."""
    if request.sum is None:
        return
    is_unmasked_step = request.sum.step == Step.ALONE
    rule = f"{Step.ALONE} for a release outside the sum, and only for one"
    name = "step of the sum"
    require(is_unmasked_step is mechanism.unmasked, name, request.sum.step, rule)
