"""Curves of releases whose worst pair of neighbours is known exactly.

Idea     where one pair of laws dominates every pair of neighbours, the account of any number of releases is exact up
         to rounding: pure, Rényi and privacy loss all come from the same pair.
Symbols  forward: losses of P, the law with the party's data, against Q, the neighbour's; backward: of Q against P.
Source   Zhu, Dong, Wang (2022), Definition 7 and Theorem 10: pairs that dominate multiply over adaptive releases.

A curve of an adjacency that is the same both ways round (replace-one) may give one pair for both: every pair of
neighbours is dominated in either role. For zero-out the two worlds differ, and a party that takes part in several
releases is in the same world in all of them, so forward losses add to forward ones and backward to backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from quietbit.errors import require
from quietbit.privacy.conversion import epsilon_from_rdp
from quietbit.privacy.curve import LossPair, PrivacyCurve, loss_epsilon_upper, total
from quietbit.privacy.guarantee import check_delta
from quietbit.privacy.loss import LossDistribution

__all__ = ["DominatingCurve"]


@final
@dataclass(frozen=True, slots=True)
class DominatingCurve:
    """A release with a dominating pair, both ways round; without ``backward``, the pair serves for both.

    >>> response = DominatingCurve.from_masses([0.75, 0.25], [0.25, 0.75])
    >>> round(response.epsilon_upper(0.0), 6), response.repeat(50).answered_by(1e-6)
    (1.098612, 'privacy-loss distribution')
    """

    forward: LossDistribution
    backward: LossDistribution | None = None

    def __post_init__(self) -> None:
        """Refuse what is no loss distribution."""
        require(isinstance(self.forward, LossDistribution), "forward", self.forward, "a LossDistribution")
        known = self.backward is None or isinstance(self.backward, LossDistribution)
        require(known, "backward", self.backward, "a LossDistribution or None")

    @classmethod
    def from_masses(
        cls, first: ArrayLike, second: ArrayLike, *, relative_error: float = 0.0, step: float | None = None
    ) -> DominatingCurve:
        """The curve of a finite pair, each mass known up to ``relative_error``, in both directions."""
        relative_error = check_delta(relative_error)
        laws = [np.array(law, dtype=np.float64) for law in (first, second)]
        tops = [np.nextafter(law * (1 + relative_error), law if relative_error == 0 else 2.0) for law in laws]
        lows = [np.nextafter(law * (1 - relative_error), law if relative_error == 0 else -1.0) for law in laws]
        lows = [np.maximum(low, 0.0) for low in lows]
        forward = LossDistribution.from_atoms(tops[0], lows[1], step=step)
        backward = LossDistribution.from_atoms(tops[1], lows[0], step=step)
        return cls(forward, None if forward == backward else backward)

    def losses(self) -> LossPair:
        """Both ways round."""
        return self.forward, self.forward if self.backward is None else self.backward

    def rdp(self, alpha: float) -> float:
        """The larger Rényi divergence of the two ways round."""
        bound = self.forward.rdp_upper(alpha)
        return bound if self.backward is None else max(bound, self.backward.rdp_upper(alpha))

    def pure_epsilon_upper(self) -> float:
        """The largest loss either way round; infinite where a mass has no counterpart."""
        bound = self.forward.pure_epsilon_upper()
        return bound if self.backward is None else max(bound, self.backward.pure_epsilon_upper())

    def repeat(self, times: int) -> PrivacyCurve:
        """The curve of ``times`` releases, their inputs chosen as one goes."""
        return total([(self, times)])

    def compose(self, other: PrivacyCurve) -> PrivacyCurve:
        """The curve of this release followed by another."""
        return total([(self, 1), (other, 1)])

    def accounts(self, delta: float) -> dict[str, float]:
        """The epsilon of every account at ``delta``."""
        delta = check_delta(delta)
        found = {"pure": self.pure_epsilon_upper()}
        if delta > 0:
            found["privacy-loss distribution"] = loss_epsilon_upper(self.losses(), delta)
            found["Rényi"] = epsilon_from_rdp(self.rdp, delta)
        return found

    def epsilon_upper(self, delta: float) -> float:
        """The smallest epsilon that an account proves at ``delta`` in [0, 1)."""
        return min(self.accounts(delta).values())

    def answered_by(self, delta: float) -> str:
        """Which account `epsilon_upper` took."""
        found = self.accounts(delta)
        return min(found, key=lambda name: found[name])
