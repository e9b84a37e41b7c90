"""The minimum-variance mechanism for vectors: an update in one seed of 16 bytes.

Idea     rotate the update with public signs, keep k of its coordinates (each client its own), clip
         again; then draw z from N(0, I_k) tilted towards the update by a profile h, and send not z
         but the seed it is expanded from. The server expands the seed, adds k numbers per payload,
         and rotates back once per mean. A body is a public nonce of 8 bytes, which picks the rows,
         and the seed. A profile so steep that the search would take more than MOST_TRIES seeds is
         refused: above about epsilon 11 per release (replace-one: 14) other mechanisms serve.
Symbols  d = dimension, p = d padded to a power of two; C = clip; y = sqrt(p/k) S H D x / C,
         clipped to norm 1; r = |y|, u = y/r, t = <u, z>; h: the profile, w = 1 - r + r h(t) the
         weight of a seed; m = gain = E[t h(t)]. n = `largest`: the largest weight, and the expected
         number of seeds tried; h_0: the smallest.
Source   docs/theory/vector-mechanism.md has law, proofs, account and design; Feldman and Talwar
         (2021) for seeds.

What sampling adds to the account of the profile (a section of that page). A search compares t with
the edges within the blur of the dominating pair; its weights, and its normals and seeds (e + c,
`law_error`), leave densities within e^s of those of the blurred profile, s = 2 (2^-50 + n 2^-63 /
h_0) + n (e + c), which is slack, and hockey-sticks within q = 5 n (e + c), which is lost mass; a
pure account has the slack alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit._typing import FloatVector
from quietbit.design.profile import Profile
from quietbit.errors import (
    check_int,
    refuse_payload,
    require,
)
from quietbit.kernel.base import Kernel
from quietbit.kernel.expand import acceptance_limits, finest_shift
from quietbit.kernel.norm import clip_factor
from quietbit.kernel.normals import inner_error_upper, law_error_upper, unit
from quietbit.kernel.rng import RandomBits, WordBlock
from quietbit.mechanism.abilities import (
    SharedRows,
)
from quietbit.mechanism.ball import Ball
from quietbit.mechanism.base import (
    LEFT_OUT,
    Accumulator,
    Body,
    Error,
    Layout,
    Parts,
    Reader,
    array_reader,
    passed_on,
)
from quietbit.mechanism.rotation import (
    NONCE,
    Rowed,
    check_keep,
    check_rotated,
    check_rows,
    check_seed,
)
from quietbit.privacy.cost import Cost
from quietbit.privacy.profile import BLUR, profile_cost
from quietbit.privacy.release import Formula
from quietbit.privacy.rounding import round_up
from quietbit.target import Adjacency

__all__ = [
    "MOST_KEPT",
    "VectorMVU",
]

SEED = 16
MOST_TRIES = 100_000
# Expected per release, about a second of one core: a server may have described the mechanism.
MOST_NORMALS = 2**28
MOST_KEPT = 65_536  # largest k for which the blur of the account has room
NONCE_STREAM = 2  # after the streams of candidates and acceptance
SMALLEST_RATIO = 2.0**-52


@final
@frozen
class VectorMVU(Rowed):
    """The vector mechanism of a profile, on updates in an L2 ball.

    A client keeps k = ``keep`` coordinates, a power of two. ``rotation_seed`` is public. Every
    release draws its rows, unless ``rows`` names those that all clients keep.
    """

    profile: Profile = field()
    ball: Ball = field(converter=check_rotated)
    keep: int = field(converter=check_keep)
    rotation_seed: int = field(default=0, converter=check_seed)
    rows: int | None = field(default=None, converter=check_rows, metadata=LEFT_OUT)

    def __attrs_post_init__(self) -> None:
        """Refuse a profile that cannot be sampled, and a number of rows that cannot be kept."""
        profile = self.profile
        require(isinstance(profile, Profile), "profile", type(profile).__name__, "a Profile")
        check_int(self.keep, "coordinates", 1, min(MOST_KEPT, self.padded))
        require(profile.gain_lower > 0, "gain of the profile", profile.gain_lower, "positive")
        smallest = float(profile.levels[0])
        least = profile.largest * SMALLEST_RATIO
        rule = f"at least {least:.3g}, 2^-52 of the largest"
        require(smallest >= least, "smallest level of the profile", smallest, rule)
        rule = f"at most {MOST_TRIES:,}, the seeds that a release may try"
        remedy = "use gaussian or imvu for so large an epsilon"
        steep = profile.largest
        require(steep <= MOST_TRIES, "largest level of the profile", steep, rule, remedy)
        limit = MOST_NORMALS / profile.largest
        rule = f"at most {limit:.0f}, for {MOST_NORMALS:,} normals per release"
        require(self.keep * profile.largest <= MOST_NORMALS, "coordinates", self.keep, rule)

    designed = passed_on("profile")

    @property
    def layout(self) -> Layout:
        """A seed, after the nonce of the rows unless these are shared."""
        return Layout.opaque(self.ball.dimension, self.nonce_size + SEED)

    def write(self, update: Parts, clip: float, rng: RandomBits, kernel: Kernel, out: Body) -> None:
        """Rotate, keep k rows, clip again, and search for a seed."""
        factor = clip_factor(kernel.norm(update, self.ball.norm.order), clip)
        block = rng.draw(self.keep)
        nonce = self.nonce(block, NONCE_STREAM)
        kept = self.project(update, factor, nonce, kernel)
        # From here on `kept` is private memory, and is clipped again.
        kept /= clip
        direction, length = unit(kept)
        share = min(length, 1.0)
        weights = (1.0 - share) + share * self.profile.levels
        body = self._search(direction, weights, block, kernel)
        out[:] = np.frombuffer(nonce[: self.nonce_size] + body, dtype=np.uint8)

    def _search(
        self, direction: FloatVector, weights: FloatVector, block: WordBlock, kernel: Kernel
    ) -> bytes:
        """Return a seed that is accepted with the weight of its step."""
        largest = self.profile.largest
        limits = acceptance_limits(np.minimum(weights / largest, 1.0))
        edges = self.profile.edges
        seed, _ = kernel.search(direction, edges, limits, block, acceptance_lower=0.999 / largest)
        return seed

    def accumulator(self, kernel: Kernel, max_payloads: int) -> Accumulator:
        """Return an accumulator of k integers per payload: at their rows, or in order if shared."""
        size = self.padded if self.rows is None else self.keep
        total = np.zeros(size, dtype=np.int64)
        return _Normals(self, kernel, finest_shift(max_payloads), total)

    def cost(self, adjacency: Adjacency) -> Cost:
        """Return the cost of the profile's dominating pair, plus what sampling adds (see above)."""
        slack, lost = self.sampling_error()
        pair = profile_cost(self.profile, adjacency, BLUR)
        cost = pair.with_slack(slack)
        everywhere = self._everywhere(pair, slack, cost.pure_epsilon())
        return cost.with_lost(lost, everywhere=everywhere)

    def error(self) -> Error:
        """Return the error of noise and projection for an update on the sphere, the largest."""
        projection = self.projection_error(1.0)
        shared = 0.0 if self.rows is None else projection
        return Error(self._noise() + projection, response=self.clip_response, shared=shared)

    def decoded(self, value: float) -> tuple[float, float]:
        """Return the value, and the variance of this coordinate in an update on the sphere."""
        # The rotation spreads other coordinates over the rows; along the update t has variance
        # E[t^2 h] - m^2 instead of 1.
        along = (self.profile.second_moment - 1) / self.profile.gain_lower**2 - 1
        rest = (1 - value**2) / self.keep * self.missing
        return value, self._noise() + rest + value**2 * along

    @property
    def moment_error(self) -> float:
        """A bound on the relative error of the moments.

        The second clip takes up to half of 1/sqrt(k), rows that do not spread evenly m^2 / k.
        """
        gain = self.profile.gain_lower
        return min(0.5, self.missing * (0.5 / math.sqrt(self.keep) + gain**2 / self.keep))

    def _noise(self) -> float:
        """Return the variance of the noise, 1 / m^2."""
        return 1 / self.profile.gain_lower**2

    def _everywhere(self, pair: Cost, slack: float, pure: float) -> Cost:
        """Return the divergences of a search's output, sampling included, up to those of ``pure``.

        p^alpha q^(1 - alpha) is at most M = n (n/h_0)^(alpha - 1), convex, and submodular: the
        worst two updates are opposite again, and its mean moves by at most 4 M (e + c).
        """
        off = math.log(4.04 * self.profile.largest * self.law_error)
        divergence = Formula(_searched, pair, slack, off, pure)
        return Cost.renyi(divergence, pure)

    @property
    def law_error(self) -> float:
        """E + c: the error of probabilities of quadrants, for 64-bit normals and 2^128 seeds."""
        return law_error_upper(self.keep) + math.sqrt(23 * self.keep + 43) * 2.0**-64

    def sampling_error(self) -> tuple[float, float]:
        """Return slack and lost mass, each rounded up."""
        fits = inner_error_upper(self.keep) <= BLUR
        require(fits, "coordinates", self.keep, "small enough for the account's blur")
        largest = self.profile.largest
        smallest = float(self.profile.levels[0])
        slack = 2 * (2.0**-50 + largest * 2.0**-63 / smallest) + 1.01 * largest * self.law_error
        # Levels over their mean, and e^slack, are within 1 % of one.
        return round_up(slack, 1e-14), round_up(5.05 * largest * self.law_error, 1e-14)


def _searched(alpha: float, pair: Cost, slack: float, off: float, pure: float) -> float:
    """Return D_alpha of a seed, e^off being 4 n (e + c); see `VectorMVU._everywhere`."""
    from_pair = (alpha - 1) * pair.rdp(alpha)
    from_sampling = off + (alpha - 1) * pair.pure_epsilon()
    moment = float(np.logaddexp(from_pair, from_sampling))
    moment += (2 * alpha - 1) * slack + 1e-14 * (1 + abs(moment))
    return min(round_up(moment / (alpha - 1), 1e-15), Cost.pure(pure).rdp(alpha))


@final
@frozen(eq=False)
class _Normals(Accumulator):
    """Sums of normals in fixed point; of shared rows, k sums in order."""

    mechanism: VectorMVU
    kernel: Kernel
    shift: int  # the number of bits after the binary point
    total: NDArray[np.int64]

    group = 256  # bodies are small

    def check(self, body: Body) -> None:
        """Refuse a wrong length; an honest client may send any seed."""
        size = self.mechanism.layout.size
        if body.size != size:
            refuse_payload("length of the body", f"{size} bytes", body.size)

    def add(self, bodies: Sequence[Body]) -> None:
        """Expand seeds and add them."""
        if not bodies:
            return
        head = self.mechanism.nonce_size
        stacked = np.stack(bodies)
        nonces = np.zeros((len(bodies), NONCE), np.uint8)  # shared rows have no nonce
        if head:
            nonces = np.ascontiguousarray(stacked[:, :head])
        seeds = np.ascontiguousarray(stacked[:, head:])
        keep = self.mechanism.keep
        self.kernel.add_seeds(nonces, seeds, self.total, count=keep, shift=self.shift)

    def kept(self, count: int) -> FloatVector:
        """Return the mean on the shared rows."""
        SharedRows.of(self.mechanism)
        return self._scaled(count)

    def reader(self, count: int) -> Reader:
        """Return a reader of the mean, rotated back."""
        mechanism = self.mechanism
        if mechanism.rows is not None:
            return array_reader(mechanism.unproject(self._scaled(count)))
        # Rows are scaled by sqrt(p/k) where they are kept and again where they are put back, and
        # each row is kept with probability k/p.
        mean = self._scaled(count) * math.sqrt(mechanism.padded / mechanism.keep)
        self.kernel.rotate_back(mean, mechanism.rotation_seed)
        return array_reader(mean)

    def _scaled(self, count: int) -> FloatVector:
        per_sum = 1 / self.mechanism.profile.gain_lower / (count * math.ldexp(1.0, self.shift))
        return np.asarray(self.total.astype(np.float64) * per_sum)
