"""Why a node does not answer: one of few public values for the server, everything else for the node's owner.

Idea     a server sees refusals as often as it likes, and without paying for them. So what reaches
         it is a value of `Reason`, with the name of a policy key or with a sentence about its own
         request, and never a text that was made where the ledger is read: a refusal cannot say how
         much a node has released, or for whom. The full text travels in `Refused.for_owner`, to the
         owner's log and `quietbit node status`.
Source   docs/explanation/threat-model.md, "What a server learns from refusals".
"""

from __future__ import annotations

from enum import Enum, unique
from typing import ClassVar, Self, final

from attrs import frozen

from quietbit.errors import InvalidParameter, InvalidPayload, QuietbitError

__all__ = [
    "AnsweredBefore",
    "BudgetSpent",
    "NeedsModel",
    "NotAllowed",
    "NotInSum",
    "Noted",
    "Reason",
    "Refusal",
    "Refused",
    "Unusable",
    "refusal_of",
]


@unique
class Reason(Enum):
    """Everything that a server can be told about a request that is not answered."""

    INVALID = "invalid-request"
    NOT_ALLOWED = "not-allowed"
    BUDGET_SPENT = "budget-spent"
    ANSWERED_BEFORE = "answered-before"
    NOTED = "noted"
    NOT_IN_SUM = "not-in-sum"
    NEEDS_MODEL = "needs-model"
    UNUSABLE = "unusable"

    @property
    def counts(self) -> bool:
        """Whether a release of this round is in the ledger, whether or not it arrived."""
        return self in (Reason.ANSWERED_BEFORE, Reason.NOTED)


SENTENCES = {
    Reason.INVALID: "The request is not one that a node can answer.",
    Reason.NOT_ALLOWED: "This node's policy does not allow the request.",
    Reason.BUDGET_SPENT: (
        "No budget is left for this release: the run's own or the node's, which its owner's log says. "
        "Run fewer rounds, or raise quietbit.releases."
    ),
    Reason.ANSWERED_BEFORE: "This node has answered this round of the run, or a later one.",
    Reason.NOTED: "The release of this round is noted, and was not made.",
    Reason.NOT_IN_SUM: "This node is not part of the sum.",
    Reason.NEEDS_MODEL: "This node needs the full model.",
    Reason.UNUSABLE: "This node cannot answer; its owner's log says why.",
}
# What a rule of the policy does not allow, by its key; a server learns the key and no number.
RULES = {
    "directory": "sums with an honest-but-curious server",
    "evaluate": "evaluations",
    "largest-clip": "so large a clip",
    "largest-dimension": "that number of parameters",
    "largest-exposure": "sums that so few colluding clients could unmask",
    "largest-sampling-rate": "so large a sampling rate",
    "mechanisms": "this mechanism",
    "metrics": "the number of examples, by which the run weights",
    "min-honest-clients": "sums of so few clients",
    "min-neighbours": "sums in which clients deal with so few others",
    "own-key": "sums that need an identity",
    "runs": "this run",
    "smallest-clip": "so small a clip",
    "trust": "this trust model",
}
SEPARATOR = ": "


@final
@frozen
class Refusal:
    """What a server is told: a reason, and its ``detail``.

    The detail is the key of a policy's rule (`RULES`), or a sentence about an invalid request;
    other reasons have none.
    """

    reason: Reason
    detail: str = ""

    def __attrs_post_init__(self) -> None:
        """Refuse a detail where a reason has none: it could only come from the ledger."""
        fine = not self.detail or self.reason is Reason.INVALID
        if not fine and not (self.reason is Reason.NOT_ALLOWED and self.detail in RULES):
            raise InvalidParameter.of(
                "detail of a refusal", f"left out for {self.reason.value}", self.detail
            )

    def sentence(self) -> str:
        """Return the refusal as a sentence for a person."""
        if self.reason is Reason.NOT_ALLOWED and self.detail:
            return f"This node's policy does not allow {RULES[self.detail]} ({self.detail})."
        return self.detail or SENTENCES[self.reason]

    def to_text(self) -> str:
        """Return the text that is sent: the reason's value, then the sentence."""
        return f"{self.reason.value}{SEPARATOR}{self.sentence()}"

    @staticmethod
    def read_reason(text: str) -> Reason | None:
        """Return the reason that a text of `to_text` begins with; None for any other text."""
        try:
            return Reason(text.partition(SEPARATOR)[0])
        except ValueError:
            return None


class Refused(QuietbitError):
    """A request that is not answered; ``str`` is what the server may read, ``for_owner`` the reason in full."""

    reason: ClassVar[Reason]

    def __init__(self, for_owner: str = "", *, rule: str = "") -> None:
        """Keep the owner's text apart; ``rule`` is the key of the policy's rule, if one is at fault."""
        self.public = Refusal(self.reason, rule)
        self.for_owner = for_owner or self.public.sentence()
        super().__init__(self.public.sentence())

    def in_full(self) -> Self:
        """Return the same refusal with the owner's text, for a caller on the node itself."""
        error = type(self)(self.for_owner)
        error.args = (self.for_owner,)
        return error


class NotAllowed(Refused):
    """The owner's policy does not allow what was asked; the server learns which rule, and not its number."""

    reason = Reason.NOT_ALLOWED


class BudgetSpent(Refused):
    """The next release would exceed a budget or a limit on counts: of the run, or of the node; servers hear no more.

    ``of_node``: what a server chose, the mechanism's cost, was compared with what is left of the
    node's own budget.
    """

    reason = Reason.BUDGET_SPENT

    def __init__(self, for_owner: str = "", *, rule: str = "", of_node: bool = False) -> None:
        """Say whose budget it is; the server is not told."""
        super().__init__(for_owner, rule=rule)
        self.of_node = of_node
        self.refused_run = ""  # where the gate notes it


class AnsweredBefore(Refused):
    """A request that is answered once, and was, or may have been: what it asks for has left this node."""

    reason = Reason.ANSWERED_BEFORE


class Noted(Refused):
    """A release that is in the ledger and cannot be made: it counts."""

    reason = Reason.NOTED


class NotInSum(Refused):
    """A step of a masked sum that this node has not begun, has left, or cannot take."""

    reason = Reason.NOT_IN_SUM


class NeedsModel(Refused):
    """The broadcasts do not lead from the model that this node has to the server's."""

    reason = Reason.NEEDS_MODEL


class Unusable(Refused):
    """This node cannot use its policy, its ledger or its gatekeeper, and answers nothing."""

    reason = Reason.UNUSABLE


CLASSES = {
    kind.reason: kind
    for kind in (NotAllowed, BudgetSpent, AnsweredBefore, Noted, NotInSum, NeedsModel, Unusable)
}


def refusal_of(error: BaseException) -> Refusal:
    """Return what a server may be told of an error.

    The sentence of an `InvalidParameter` is passed on: the gate lets only those out that were
    raised before it looked at its ledger, from the request and the policy. Any other error is
    `Reason.UNUSABLE`.
    """
    if isinstance(error, Refused):
        return error.public
    if isinstance(error, InvalidParameter | InvalidPayload):
        return Refusal(Reason.INVALID, str(error))
    return Refusal(Reason.UNUSABLE)


def error_of(refusal: Refusal) -> QuietbitError:
    """Return the error that a refusal came from, on the other side of a socket."""
    if refusal.reason is Reason.INVALID:
        return InvalidParameter(refusal.sentence())
    return CLASSES[refusal.reason](rule=refusal.detail)
