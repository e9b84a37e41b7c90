"""Why a node refuses a request: a public value for the server, the full text for the owner.

Idea     refusals cost a server nothing, and it can provoke as many as it wants. So it gets a value
         of `Reason`, with the name of a policy key or a sentence about its own request, and never
         a text that depends on the ledger: a refusal must not say how much a node has released, or
         for whom. The full text is in `Refused.for_owner`, for the owner's log and `quietbit node
         status`.
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
    """The reasons for a refusal that a server may learn."""

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
    Reason.INVALID: "The request is invalid.",
    Reason.NOT_ALLOWED: "This node's policy does not allow the request.",
    Reason.BUDGET_SPENT: (
        "No budget is left for this release, of the run or of the node (the owner's log says "
        "which). Run fewer rounds, or raise quietbit.releases."
    ),
    Reason.ANSWERED_BEFORE: "This node has already answered this round of the run, or a later one.",
    Reason.NOTED: "The release of this round is noted in the ledger, and was not made.",
    Reason.NOT_IN_SUM: "This node is not part of the sum.",
    Reason.NEEDS_MODEL: "This node needs the full model: send it instead of a broadcast.",
    Reason.UNUSABLE: "This node cannot answer; its owner's log says why.",
}
# What each rule of a policy forbids. A server learns the key and not the number.
RULES = {
    "directory": "sums with an honest-but-curious server",
    "evaluate": "evaluations",
    "largest-clip": "so large a clip",
    "largest-dimension": "that number of parameters",
    "largest-sampling-rate": "so large a sampling rate",
    "mechanisms": "this mechanism",
    "metrics": "sending the number of examples, by which the run weights",
    "min-honest-clients": "sums of so few clients",
    "most-colluders": "sums that so few colluding clients could unmask",
    "own-key": "sums that need an identity",
    "runs": "this run",
    "smallest-clip": "so small a clip",
    "trust": "this trust model",
}
SEPARATOR = ": "


@final
@frozen
class Refusal:
    """A refusal as the server gets it: a reason and its ``detail``.

    The detail is the key of a policy's rule (`RULES`), or a sentence about an invalid request.
    Other reasons have none.
    """

    reason: Reason
    detail: str = ""

    def __attrs_post_init__(self) -> None:
        """Refuse a detail where the reason has none: it could only come from the ledger."""
        if not self.detail or self.reason is Reason.INVALID:
            return
        if self.reason is Reason.NOT_ALLOWED and self.detail in RULES:
            return
        rule = f"empty for {self.reason.value}"
        raise InvalidParameter.of("detail of a refusal", rule, self.detail)

    def sentence(self) -> str:
        """Return the refusal as a sentence."""
        if self.reason is Reason.NOT_ALLOWED and self.detail:
            return f"This node's policy does not allow {RULES[self.detail]} ({self.detail})."
        return self.detail or SENTENCES[self.reason]

    def to_text(self) -> str:
        """Return the text that is sent to the server: the reason's value, then the sentence."""
        return f"{self.reason.value}{SEPARATOR}{self.sentence()}"

    @staticmethod
    def read_reason(text: str) -> Reason | None:
        """Return the reason that a text from `to_text` begins with; None for any other text."""
        try:
            return Reason(text.partition(SEPARATOR)[0])
        except ValueError:
            return None


class Refused(QuietbitError):
    """A refused request; ``str`` is what the server may read, ``for_owner`` the full reason."""

    reason: ClassVar[Reason]

    def __init__(self, for_owner: str = "", *, rule: str = "") -> None:
        """Keep the owner's text; ``rule`` is the key of the policy's rule at fault, if any."""
        self.public = Refusal(self.reason, rule)
        self.for_owner = for_owner or self.public.sentence()
        super().__init__(self.public.sentence())

    def in_full(self) -> Self:
        """Return this refusal with the owner's text as its message, for callers on the node."""
        error = type(self)(self.for_owner)
        error.args = (self.for_owner,)
        return error


class NotAllowed(Refused):
    """The policy forbids the request; the server learns which rule, and not its number."""

    reason = Reason.NOT_ALLOWED


class BudgetSpent(Refused):
    """The release would exceed a budget or a count, of the run or of the node.

    ``of_node`` is true where the cost, which a server chooses, was compared with the remaining
    budget of the node. The server does not learn which budget it was.
    """

    reason = Reason.BUDGET_SPENT

    def __init__(self, for_owner: str = "", *, rule: str = "", of_node: bool = False) -> None:
        """Keep whose budget it is; the server does not learn it."""
        super().__init__(for_owner, rule=rule)
        self.of_node = of_node
        self.refused_run = ""  # set by the gate, for the limit on refusals per day


class AnsweredBefore(Refused):
    """A request that is answered once, and was: its release may have left this node."""

    reason = Reason.ANSWERED_BEFORE


class Noted(Refused):
    """A release that is noted in the ledger and cannot be made; it counts."""

    reason = Reason.NOTED


class NotInSum(Refused):
    """A step of a masked sum that this node has not begun, has left, or cannot take."""

    reason = Reason.NOT_IN_SUM


class NeedsModel(Refused):
    """The broadcasts do not lead from this node's model to the server's."""

    reason = Reason.NEEDS_MODEL


class Unusable(Refused):
    """This node's policy, ledger or gatekeeper cannot be used, so it answers nothing."""

    reason = Reason.UNUSABLE


CLASSES = {
    kind.reason: kind
    for kind in (NotAllowed, BudgetSpent, AnsweredBefore, Noted, NotInSum, NeedsModel, Unusable)
}


def refusal_of(error: BaseException) -> Refusal:
    """Return what a server may learn of an error.

    The sentence of an `InvalidParameter` is passed on: the gate raises those from the request and
    the policy alone, before it reads the ledger. Any other error is `Reason.UNUSABLE`.
    """
    if isinstance(error, Refused):
        return error.public
    if isinstance(error, InvalidParameter | InvalidPayload):
        return Refusal(Reason.INVALID, str(error))
    return Refusal(Reason.UNUSABLE)


def error_of(refusal: Refusal) -> QuietbitError:
    """Return the error that a refusal was made from, on the other side of a socket."""
    if refusal.reason is Reason.INVALID:
        return InvalidParameter(refusal.sentence())
    return CLASSES[refusal.reason](rule=refusal.detail)
