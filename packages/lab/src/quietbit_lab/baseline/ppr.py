"""Poisson private representation: an output named by its place in a public Poisson process.

Idea     both ends hold the same endless list of candidates; a client draws a place in it so that
         the candidate there has exactly the law of the mechanism that is simulated, and sends the
         place. Nothing is approximated; what it costs is privacy against a server that holds the
         list, which is every server here.
Symbols  e: epsilon of the simulated PrivUnitG; alpha > 1: how sharply small places are preferred;
         h: its density, two levels, high on mass q.
Source   Liu, Chen, Ozgur, Li (NeurIPS 2024), "Universal exact compression of differentially private
         mechanisms": the output of an e-private mechanism costs 2 alpha e in this form; the mean of
         log2(place) is at most D(P||Q)/log 2 + log2(3.56)/min((alpha - 1)/2, 1), and a place takes
         l + log2(l + 1) + 2 bits for l of these.

Not a mechanism for `Uplink`: places have no largest value, so payloads have no fixed size, and how
long a client searches depends on what it found. Here are its account, its error and its bits.
"""

from __future__ import annotations

import math
from typing import final

from attrs import field, frozen
from scipy.special import ndtr

from quietbit.errors import check_real
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import Error
from quietbit.mechanism.family import largest_private
from quietbit.privacy.cost import Cost
from quietbit.privacy.profile import profile_cost
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency, Target, Trust, Unit
from quietbit_lab.baseline.base import LEAST_EPSILON, MOST_EPSILON
from quietbit_lab.baseline.codebook import check_ball
from quietbit_lab.baseline.privunit import step_profile

__all__ = ["PoissonRepresentation", "calibrate_ppr"]


def _simulated_epsilon(value: float) -> float:
    return check_real(value, "simulated_epsilon", at_least=LEAST_EPSILON, at_most=MOST_EPSILON)


def _alpha(value: float) -> float:
    return check_real(value, "alpha", above=1.0, at_most=100.0)


@final
@frozen
class PoissonRepresentation:
    """PrivUnitG of ``simulated_epsilon`` on an L2 ball, sent as a place in a Poisson process."""

    ball: Ball
    simulated_epsilon: float = field(converter=_simulated_epsilon)
    alpha: float = field(default=1.1, converter=_alpha)

    def __attrs_post_init__(self) -> None:
        """Refuse another norm."""
        check_ball(self.ball, "PPR")

    def privacy(self, adjacency: Adjacency) -> Cost:
        """2 alpha e: what a place reveals to a server that holds the list."""
        which = Adjacency(adjacency)
        simulated = profile_cost(step_profile(self.simulated_epsilon), which, 0.0).pure_epsilon()
        curve = Cost.pure(round_up(2 * self.alpha * simulated, 1e-14))
        return curve.of(which, Unit.CLIENT, Trust.LOCAL)

    def error(self) -> Error:
        """Return the error of the simulated mechanism, which is exact."""
        return Error(step_profile(self.simulated_epsilon).gain_lower ** -2)

    def bits_upper(self) -> float:
        """Return an upper bound on the mean number of bits of a place."""
        profile = step_profile(self.simulated_epsilon)
        mass = float(ndtr(-profile.edges[0]))
        low, high = profile.levels.tolist()
        nats = mass * high * math.log(high) + (1 - mass) * low * math.log(low)
        length = nats / math.log(2) + math.log2(3.56) / min((self.alpha - 1) / 2, 1.0)
        return round_up(length + math.log2(length + 1) + 2, 1e-9)


def calibrate_ppr(ball: Ball, target: Target, alpha: float = 1.1) -> PoissonRepresentation:
    """Return the most revealing simulated mechanism whose places meet the target."""

    def account(loss: float) -> float:
        one = PoissonRepresentation(ball, loss, alpha).privacy(target.adjacency)
        return (one * target.releases).epsilon(target.delta)

    simulated_epsilon = largest_private(account, LEAST_EPSILON, MOST_EPSILON, target.epsilon, "PPR")
    return PoissonRepresentation(ball, simulated_epsilon, alpha)
