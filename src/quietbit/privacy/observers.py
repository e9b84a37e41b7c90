"""Two guarantees from one run: against the server, and against everybody who sees only what came of it.

Idea     the server sees who sent what, and nothing but the release itself protects a client from it. Whoever sees the
         models alone does not know whose release was whose, and a client is one among many. Both numbers belong to a
         run, neither replaces the other, and where there is no second one the first holds for everybody.
Symbols  crowd: the fewest clients among whom a release is hidden; shuffles: how many releases of the worst client
         count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit.errors import check_int, require
from quietbit.privacy.guarantee import Guarantee, Trust

__all__ = ["GuaranteePair"]


@final
@dataclass(frozen=True, slots=True)
class GuaranteePair:
    """``server``: what holds against the server; ``result``: against those who see the result alone, or None.

    Where there is no second guarantee ``reason`` says why. ``secret_order`` says among whom a release is hidden: all
    clients of an epoch, whose order nobody else knows, or else those of its own round, of which the sum alone is
    seen. ``leavers`` were away for a part of an epoch: ``crowd`` is that of the rounds which the worst of them was
    there for.
    """

    server: Guarantee
    result: Guarantee | None
    crowd: int = 0
    shuffles: int = 0
    secret_order: bool = False
    reason: str = ""
    leavers: int = 0

    def __post_init__(self) -> None:
        """Refuse a pair that speaks of two things, a second guarantee without a crowd, and none without a reason."""
        require(isinstance(self.server, Guarantee), "server", self.server, "a Guarantee")
        shuffled = self.server.trust is Trust.SHUFFLED
        require(not shuffled, "trust of the server's guarantee", self.server.trust.value, "one that holds against it")
        for name in ("crowd", "shuffles", "leavers"):
            object.__setattr__(self, name, check_int(getattr(self, name), name, 0))
        if self.result is None:
            require(bool(self.reason), "reason", self.reason, "given where there is no second guarantee")
            return
        require(isinstance(self.result, Guarantee), "result", self.result, "a Guarantee or None")
        require(self.server.trust is Trust.LOCAL, "trust of the server's guarantee", self.server.trust.value, "local")
        require(
            self.result.trust is Trust.SHUFFLED, "trust of the second guarantee", self.result.trust.value, "shuffled"
        )
        same = (self.result.unit, self.result.adjacency) == (self.server.unit, self.server.adjacency)
        require(same, "second guarantee", self.result, "of the unit and adjacency of the first")
        require(self.crowd > 0, "crowd", self.crowd, "positive beside a second guarantee")
        require(not self.reason, "reason", self.reason, "left out beside a second guarantee")

    def sentence(self) -> str:
        """Both guarantees in plain English."""
        return f"Against the server: {self.server.sentence()} {self.second()}"

    def second(self) -> str:
        """The guarantee against those who see the result alone, in plain English."""
        if self.result is None:
            return f"Against those who see the result alone: no less is promised, because {self.reason}."
        among = "in a secret order" if self.secret_order else "in the same round"
        times = "once" if self.shuffles == 1 else f"{self.shuffles:,} times"
        crowd = f"It counts on {self.crowd:,} clients that release {among}, {times}."
        if self.leavers:
            crowd += f" {self.leavers:,} that were away for a part of an epoch are hidden among no more than that."
        return f"Against those who see the result alone: {self.result.sentence()} {crowd}"
