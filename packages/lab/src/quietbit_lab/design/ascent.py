"""Profiles whose edges move one by one: the search that made the shipped ones.

Idea     equally spaced edges are found by a simplex search, then all edges move by gradient ascent.
Symbols  U(l) = T times the delta that T-1 releases leave when one has lost l: the derivative of
         delta by the mass of P at loss l, that of Q moving along.
Source   packages/lab/docs/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import final

import numpy as np
from scipy.optimize import minimize

from quietbit._threads import one_thread
from quietbit._typing import FloatVector
from quietbit.design.profile_search import (
    FARTHEST,
    FINE,
    MOST,
    NARROWEST,
    SEARCHED,
    STRETCHED,
    WIDEST,
    LatticeAccount,
    Proposal,
    best_of,
    compose,
    ladder,
    simplex,
)
from quietbit.target import Target

__all__ = ["propose"]

# While edges move, the norm of this order replaces the larger of the two deltas of zero-out.
SHARPNESS = 4.0
COARSE = 32  # levels of the search; for many releases the lattice is halved afterwards
FINER = 4e-5  # relative gain that justifies halving the lattice once more


@one_thread()
def propose(target: Target) -> Proposal:
    """Find a profile as `quietbit.design.profile_search.propose` does, and move all its edges."""
    account = AscendingAccount(target)
    return best_of(account, target, partial(_candidates, account, target.releases))


def _ascend(account: AscendingAccount, start: Proposal, evaluations: int = 160) -> Proposal:
    """Move all edges by gradient ascent on the log of the gain at fixed delta."""
    best = start

    def cost(x: FloatVector) -> tuple[float, FloatVector]:
        nonlocal best
        gaps = np.exp(np.clip(x[1:], NARROWEST, WIDEST))
        edges = x[0] + np.concatenate(([0.0], np.cumsum(gaps)))
        if np.abs(edges).max() > FARTHEST or not np.all(np.diff(edges) > 0):
            return 50.0, np.zeros_like(x)
        proposal, slope = account.ascent(edges)
        if proposal.gain > best.gain:
            best = proposal
        beyond = np.cumsum(slope[::-1])[::-1]  # a wider gap moves every edge after it
        return -math.log(proposal.gain), -np.concatenate((beyond[:1], beyond[1:] * gaps))

    x = np.concatenate((start.edges[:1], np.log(np.diff(start.edges))))
    options = {"maxiter": evaluations, "maxfun": evaluations, "maxcor": 20, "ftol": 1e-11}
    minimize(cost, x, jac=True, method="L-BFGS-B", options=options)
    return account.fit(best.edges)


def _halved(edges: FloatVector) -> FloatVector:
    """Return the edges of nearly the same function on a lattice of half the step."""
    # Edge k is where log h, in steps above its least, passes k - 1/2; the new ones are where it
    # passes (k - 1/2)/2.
    passes = np.arange(edges.size) + 0.5
    wanted = (np.arange(2 * edges.size) + 0.5) / 2
    inner: FloatVector = np.interp(wanted, passes, edges)
    inner[0] = edges[0] - 0.25 * (edges[1] - edges[0])
    inner[-1] = edges[-1] + 0.25 * (edges[-1] - edges[-2])
    return inner


def _candidates(account: AscendingAccount, releases: int, pure: float) -> Iterator[Proposal]:
    """Yield equally spaced edges, then free ones; for many releases a Gaussian."""
    if releases > SEARCHED:
        yield account.fit(ladder(MOST) * (9.5 / MOST))
    else:
        yield simplex(account, np.zeros(1), (pure, 0.0))
        proposals = []
        for centre, spread in ((0.3, 6.0), (pure, 1.5)):
            simple = simplex(account, ladder(COARSE), (centre, math.log(spread / COARSE)))
            yield simple
            proposal = _ascend(account, simple)
            if releases < 100:
                proposal = _ascend(account, proposal)  # a second start discards a stale curvature
            proposals.append(proposal)
            yield proposal
        if releases < 30:
            return
        best = max(proposals, key=lambda proposal: proposal.gain)
        best = _ascend(account, account.fit(_halved(best.edges)), evaluations=60)
        while releases >= 100 and best.edges.size < FINE / 2:
            finer = account.fit(_halved(best.edges))
            gained = finer.gain / best.gain - 1
            best = finer
            if gained < FINER:
                break
        middle = float(best.edges.mean())
        yield simplex(account, best.edges - middle, (middle, 0.0), evaluations=30)
    if 100 <= releases <= STRETCHED:
        yield simplex(account, ladder(FINE), (0.0, math.log(7 / FINE)), evaluations=60)


def _smooth(deltas: list[float]) -> float:
    """Return the norm of both deltas, which has a gradient where the larger one changes."""
    largest = max(deltas)
    if largest <= 0:
        return largest
    powers = sum((delta / largest) ** SHARPNESS for delta in deltas)
    return float(largest * powers ** (1 / SHARPNESS))


@final
class AscendingAccount(LatticeAccount):
    """An account with the gradient of the gain."""

    def ascent(self, edges: FloatVector) -> tuple[Proposal, FloatVector]:
        """Return the proposal at these edges, and the gradient of log gain at constant delta."""
        cells = self.cells(edges)
        step = self.step(cells, _smooth)
        i = np.arange(edges.size)
        height = np.exp(step * np.arange(edges.size + 1.0))
        total = np.sum(cells.mass * height[cells.level])
        h = height / total
        flow = np.diff(h) * cells.density
        gain = float(np.sum(flow))
        deltas = []
        slopes = []
        for mass, losses, sign in self.losses(cells, step):
            p, q = self._marginals(mass, losses, step)
            delta = float(np.sum(mass * (p - q * np.exp(-losses)))) / self.times
            deltas.append(max(delta, 1e-30))
            if self.mirrored:
                j = np.searchsorted(edges, -edges)  # the level at the mirror image of each edge
                here = i - j
                there = j - i
                o = edges.size
                change = (
                    h[i] * p[here + o]
                    - h[i + 1] * p[here + 1 + o]
                    + h[j] * (p[there + o] - p[there - 1 + o])
                )
                change -= (
                    h[j] * (q[here + o] - q[here + 1 + o])
                    + h[i] * q[there + o]
                    - h[i + 1] * q[there - 1 + o]
                )
                rescale = self.times * deltas[-1]
            elif sign > 0:
                change = h[i] * p[i] - h[i + 1] * p[i + 1] - (q[i] - q[i + 1])
                rescale = float(np.sum(mass * p))
            else:
                p = p[::-1]
                q = q[::-1]
                change = p[i] - p[i + 1] - (h[i] * q[i] - h[i + 1] * q[i + 1])
                rescale = -float(np.sum(cells.mass * h * q))
            slopes.append(cells.density * change + rescale * flow)
        powers = (np.array(deltas) / max(deltas)) ** SHARPNESS
        weights = powers / powers.sum()
        terms = [w / d * s for w, d, s in zip(weights, deltas, slopes, strict=True)]
        log_delta = np.sum(terms, axis=0)
        up = step * (1 + 1e-4)
        down = step * (1 - 1e-4)
        more = max(_smooth(self.deltas(cells, up)), 1e-30)
        less = max(_smooth(self.deltas(cells, down)), 1e-30)
        by_step = math.log(more / less)
        gained = math.log(self.gain(cells, up) / self.gain(cells, down))
        slope: FloatVector = flow * (1 - edges / gain) - (gained / max(by_step, 1e-9)) * log_delta
        return Proposal(edges, step, gain), slope

    def _marginals(
        self, mass: FloatVector, losses: FloatVector, step: float
    ) -> tuple[FloatVector, FloatVector]:
        """Return derivatives of delta at each loss: by masses of P, and minus those by Q's."""
        rest, offset = compose(mass, self.times - 1)
        loss = (self.times - 1) * losses[0] + step * (np.arange(rest.size) + offset)
        # Far down, e^-loss amplifies rounding errors; only the upper end is ever used.
        scaled = rest * np.exp(np.minimum(self.epsilon - loss, 300.0))
        cut = np.searchsorted(loss, self.epsilon - losses, side="right")
        return self.times * _sums_from(rest)[cut], self.times * _sums_from(scaled)[cut]


def _sums_from(values: FloatVector) -> FloatVector:
    """Return for every index the sum of the values from there on, and zero after the last."""
    return np.concatenate((np.cumsum(values[::-1])[::-1], [0.0]))
