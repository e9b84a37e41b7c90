"""How a run learns: what is not privacy's business, beside the plan that is.

Idea     the server's step and momentum, the clients' local steps, how long, and when to look at the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit.errors import check_int, check_real, require
from quietbit.plan.plan import Plan
from quietbit.simulate.problem import MAX_CLIP, LocalPlan

__all__ = ["Training"]


@final
@dataclass(frozen=True, slots=True)
class Training:
    """``lr`` is the server's step on the mean of the decoded updates, after momentum.

    Where the clip moves, the step is in units of the clip of the round: a mean of updates that are all cut then moves
    the model equally far wherever the clip is, and noise too, so that a start far off does not throw the model away.

    Clients take ``local_steps`` steps of size ``local_rate``. The model is scored at the end, every
    ``evaluate_every`` rounds (0: never), and after the rounds of ``evaluate_at``.
    """

    lr: float
    rounds: int
    momentum: float = 0.5
    local_steps: int = 1
    local_rate: float = 0.1
    evaluate_every: int = 0
    evaluate_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers without a meaning."""
        put = object.__setattr__
        put(self, "lr", check_real(self.lr, "lr"))
        put(self, "rounds", check_int(self.rounds, "rounds", 1))
        put(self, "evaluate_every", check_int(self.evaluate_every, "evaluate_every", 0))
        put(self, "evaluate_at", tuple(check_int(t, "evaluate_at", 1, self.rounds) for t in self.evaluate_at))
        momentum = float(self.momentum) if not isinstance(self.momentum, bool | str) else float("nan")
        require(0 <= momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        put(self, "local_steps", check_int(self.local_steps, "local steps", 1))
        check_real(self.local_rate, "local rate")

    def local(self, plan: Plan) -> LocalPlan:
        """Return what clients do with their data before anything is randomised.

        A clip that moves is the mechanism's own to apply, which must see how long the update was.
        """
        clip = plan.clip if plan.clip_quantile is None else MAX_CLIP
        return LocalPlan(plan.norm, clip, plan.unit, self.local_steps, self.local_rate)

    def evaluated(self, number: int) -> bool:
        """Return whether the model is scored after ``number`` rounds: at the end, and where asked for."""
        every = self.evaluate_every
        return number == self.rounds or number in self.evaluate_at or bool(every and number % every == 0)
