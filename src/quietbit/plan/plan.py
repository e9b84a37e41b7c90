"""The plan of a private run: one frozen value that the simulator, an engine and the ledger each read their part of.

Idea     whoever starts a run says what may leave a client, what it may cost, who takes part and who may look. From
         these choices alone follow the mechanism (built as told, or calibrated to the budget), the price of one
         release under the plan's trust, and the account of every client, so the three cannot disagree. A choice that
         plays no part is refused: no record claims a number that was not used.
Symbols  the budget is ``epsilon`` at ``delta``, for all releases of one client together; a design's own epsilon is
         ``design_epsilon``.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the choices.

Calibration. The releases of the most frequent client are known beforehand, because participation is; the budget is
met for that client. At sample level a noise multiplier given by hand is in units of the largest sensitivity, clip /
(samples of the smallest client), and a budget is met on the run's own account. Under secure aggregation it is met by
the account of the sum; under central trust the mechanism's noise is that of the whole sum.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from quietbit.design.binomial import MOST_BINOMIAL_BITS, binomial_design
from quietbit.errors import InvalidParameter, check_int, check_real, member, require
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.base import Mechanism, summable
from quietbit.mechanism.calibrate import AUTO, calibrate
from quietbit.mechanism.central_sum import calibrate_sum
from quietbit.mechanism.family import Choices
from quietbit.mechanism.interpolated import UNBIASED
from quietbit.mechanism.projected import ProjectedSamples, project
from quietbit.mechanism.registry import families, family
from quietbit.mechanism.watched import Watched
from quietbit.plan.account import Account
from quietbit.plan.clip import RATE, ClipRule, MovingClip, usual_bit_epsilon
from quietbit.plan.participation import KINDS, Participation, participation
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit, check_delta
from quietbit.privacy.release import Release
from quietbit.target import MAX_RELEASES

__all__ = ["PUBLIC", "RoundPlan"]

PUBLIC = "none"  # in place of a mechanism: clipped updates as they are, without privacy
CENTRAL = "gaussian"  # whose noise a trusted server adds once, to the sum
SOLVED_FOR_SUMS = "imvu"  # what `calibrate_sum` solves for
RNGS = ("secure", "seeded")
# Choices of a mechanism, with what the paper takes: harmless where a mechanism makes no use of it.
USUAL = {"bits": None, "levels": None, "beta": 1.0, "clamp": False, "decoder": "alphabet"}


@final
@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Mechanism, budget, participation and trust of a run.

    ``mechanism`` is the word of a family, ``auto`` for the one that serves the budget best under the plan's trust
    (`mechanism_for` names it), or ``none`` for a run without privacy. Its strength is ``design_epsilon``
    or ``noise_multiplier``, as the family calls it. Left out, it is calibrated so that all releases of the most
    frequent client together meet the budget ``epsilon`` at ``delta``; given, a budget stops a run before it would be
    exceeded. ``bits``, ``levels``, ``beta``, ``clamp`` and ``decoder`` are left to the family unless said.
    ``releases`` is how often a client may take part, where no schedule says so (`simulate` has one).

    ``keep`` is how many rotated coordinates a client keeps, a power of two, or ``auto``; all unless said.

    With a ``clip_quantile`` the clip moves: it begins at ``clip`` and follows the updates, by steps of ``clip_rate``
    (0.2 unless said), towards the one that leaves this share of them alone. Every release then carries one bit more,
    of ``clip_bit_epsilon``; unless said, all bits of a client alone would cost a tenth of the budget.

    ``seed`` fixes who takes part when, unless ``participation`` is a ``secret-order``; with ``rng`` seeded it fixes
    the randomisation too, which then protects nobody.

    ``trust`` says who may look. ``local``: the server sees every payload. ``secure-aggregation`` (imvu): it sees sums
    of codes over a cohort, of which ``min_honest_clients``, the whole cohort unless said, answer in every round and do
    not collude; a budget is then met by solving for beta, with inputs clamped. ``central`` (gaussian): the server is
    trusted with clipped updates and adds the noise once, to their sum.
    """

    mechanism: str
    _: KW_ONLY
    clip: float
    adjacency: Adjacency
    norm: Norm = Norm.L2
    epsilon: float | None = None
    delta: float = 1e-5
    unit: Unit = Unit.CLIENT
    trust: Trust = Trust.LOCAL
    releases: int | None = None
    cohort: int = 1
    participation: str = "each-once"
    min_honest_clients: int | None = None
    design_epsilon: float | None = None
    noise_multiplier: float | None = None
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    rng: str = "secure"
    seed: int = 0
    keep: int | str | None = None
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_bit_epsilon: float | None = None

    def __post_init__(self) -> None:
        """Refuse words that are none of ours, numbers without a meaning, and choices that play no part."""
        put = object.__setattr__
        put(self, "norm", member(Norm, self.norm, "norm"))
        put(self, "adjacency", member(Adjacency, self.adjacency, "adjacency"))
        put(self, "unit", member(Unit, self.unit, "unit"))
        put(self, "trust", member(Trust, self.trust, "trust"))
        require(self.rng in RNGS, "rng", self.rng, "one of " + ", ".join(RNGS))
        require(self.participation in KINDS, "participation", self.participation, "one of " + ", ".join(KINDS))
        put(self, "cohort", check_int(self.cohort, "cohort", 1))
        put(self, "seed", check_int(self.seed, "seed", 0))
        put(self, "delta", check_delta(self.delta))
        check_real(self.clip, "clip")
        if self.epsilon is not None:
            put(self, "epsilon", check_real(self.epsilon, "epsilon"))
        if self.releases is not None:
            put(self, "releases", check_int(self.releases, "releases", 1, MAX_RELEASES))
        self._check_mechanism()
        self._check_trust()
        self._check_clip()

    def _check_mechanism(self) -> None:
        """The strength that belongs to the mechanism, or a budget to find it for; no choice that it does not use."""
        strengths = ("design_epsilon", "noise_multiplier")
        if not self.private:
            for name in ("epsilon", "releases", "keep", *strengths):
                require(getattr(self, name) is None, name, getattr(self, name), "left out without privacy")
        known = [*families(), AUTO, PUBLIC]
        require(self.mechanism in known, "mechanism", self.mechanism, "one of " + ", ".join(known))
        chosen = family(self.mechanism) if self.mechanism not in (AUTO, PUBLIC) else None
        uses = chosen.uses if chosen is not None else ()
        for name, usual in USUAL.items():
            value = getattr(self, name)
            rule = f"left out for {self.mechanism}, which makes no use of it"
            require(value is None or value == usual or name in uses, name, value, rule)
        if chosen is None:
            self._check_auto(strengths)
            return
        for name in strengths:
            value = getattr(self, name)
            if value is not None:
                rule = f"left out for {self.mechanism}, whose strength is its {chosen.strength}"
                require(name == chosen.strength, name, value, rule)
                object.__setattr__(self, name, check_real(value, name))
        if self.calibrated and self.epsilon is None:
            raise InvalidParameter(
                f"{chosen.strength} must be given for {self.mechanism}, or a budget epsilon to find it for."
            )

    def _check_auto(self, strengths: tuple[str, ...]) -> None:
        """A budget is all that ``auto`` goes by."""
        if not self.private:
            return
        for name in strengths:
            require(getattr(self, name) is None, name, getattr(self, name), f"left out for {AUTO}, which finds its own")
        if self.epsilon is None:
            raise InvalidParameter(f"epsilon must be given for {AUTO}: the budget that a mechanism is chosen for.")

    def _check_trust(self) -> None:
        """Only what has an account under the trust model, and the clients that it counts on."""
        secure = self.trust is Trust.SECURE_AGGREGATION
        count = self.min_honest_clients
        require(secure or count is None, "min_honest_clients", count, "left out unless trust is secure-aggregation")
        secret = self.participation == "secret-order"
        rule = "secure for a secret order: nobody must be able to draw it again"
        require(not secret or self.rng == "secure", "rng", self.rng, rule)
        rule = "local: what a crowd hides from others than the server is said beside it (`quietbit.plan.observers`)"
        require(self.trust is not Trust.SHUFFLED, "trust", self.trust.value, rule)
        if self.trust is Trust.LOCAL:
            return
        names = _summed() if secure else [CENTRAL]
        rule = f"{' or '.join(names)} under {self.trust.value} trust"
        require(self.mechanism in [*names, AUTO], "mechanism", self.mechanism, rule)
        require(self.unit is Unit.CLIENT, "unit", self.unit.value, f"client under {self.trust.value} trust")
        if not secure:
            return
        check_int(self.cohort, "cohort", 2, MOST_CLIENTS)
        known = self.cohort if count is None else count
        object.__setattr__(self, "min_honest_clients", check_int(known, "min_honest_clients", 2, self.cohort))
        width = check_int(self.bits or 1, "bits", 1, MOST_BINOMIAL_BITS)
        even = width == 1 or self.levels in (None, 2)
        require(even, "levels", self.levels, "left out for sums of codes of several bits")
        free = not self.calibrated or (self.beta in (None, 1.0) and not self.clamp)
        rule = "left out: for a budget under secure aggregation they are chosen"
        require(free, "beta and clamp", (self.beta, self.clamp), rule)
        found = not self.calibrated or self.mechanism in (SOLVED_FOR_SUMS, AUTO)
        require(found, "mechanism", self.mechanism, f"{SOLVED_FOR_SUMS} to meet a budget by sums")

    def _check_clip(self) -> None:
        """A clip that moves by the bits of single clients, whose updates it clips; else nothing of it."""
        if self.clip_quantile is None:
            for name in ("clip_rate", "clip_bit_epsilon"):
                value = getattr(self, name)
                require(value is None, name, value, "left out unless clip_quantile says that the clip moves")
            return
        moves = ClipRule(self.clip_quantile, RATE if self.clip_rate is None else self.clip_rate)
        object.__setattr__(self, "clip_quantile", moves.quantile)
        object.__setattr__(self, "clip_rate", moves.rate)
        require(self.private, "clip_quantile", self.clip_quantile, "left out without privacy")
        rule = "local where the clip moves: its bit is priced as one that the server sees"
        require(self.trust is Trust.LOCAL, "trust", self.trust.value, rule)
        rule = "client where the clip moves: samples are clipped one by one, and a bit for each would cost too much"
        require(self.unit is Unit.CLIENT, "unit", self.unit.value, rule)
        if self.clip_bit_epsilon is None and not self.calibrated:
            raise InvalidParameter("clip_bit_epsilon must be given where the mechanism's strength is.")

    @property
    def private(self) -> bool:
        """Whether there is a mechanism at all."""
        return self.mechanism != PUBLIC

    @property
    def calibrated(self) -> bool:
        """Whether the mechanism's strength is to be found from the budget."""
        return self.private and self.design_epsilon is None and self.noise_multiplier is None

    def moving_clip(self) -> MovingClip | None:
        """The clip at the start of a run; None where it stays."""
        if self.clip_quantile is None:
            return None
        return MovingClip.from_start(self.clip, quantile=self.clip_quantile, rate=cast(float, self.clip_rate))

    def schedule(self, clients: int) -> Participation:
        """Who takes part in which round, when there are so many clients."""
        return participation(self.participation, clients, self.cohort, self.seed)

    def mechanism_for(
        self,
        dimension: int,
        sizes: NDArray[np.int64] | None = None,
        releases: int | NDArray[np.int64] | None = None,
    ) -> Mechanism:
        """The mechanism for updates of this dimension.

        Args:
            dimension: entries of an update.
            sizes: the samples of each client; needed where samples are protected.
            releases: how often each client takes part, or all of them alike; the plan's own unless said.
        """
        if not self.private:
            raise InvalidParameter("A plan without privacy has no mechanism.")
        ball = Ball(self.norm, self.clip, dimension)
        sample = self.unit is Unit.SAMPLE
        if sample and sizes is None:
            raise InvalidParameter("sizes must be given where samples are protected: the samples of each client.")
        known = np.ones(1, dtype=np.int64) if sizes is None else np.asarray(sizes, dtype=np.int64)
        if not self.calibrated:
            found = self._given(ball, int(known.min()) if sample else 1)
            return found if self.clip_bit_epsilon is None else Watched(found, self.clip, self.clip_bit_epsilon)
        times = self.releases if releases is None else releases
        if times is None:
            raise InvalidParameter("releases must be given to meet a budget: how often a client may take part.")
        counts = np.asarray(times, dtype=np.int64)
        return self._found(ball, known, np.broadcast_to(counts, known.shape) if sample else counts)

    def release(self, mechanism: Mechanism, samples: int | None = None) -> Release:
        """What one release costs under the plan's trust: of a client, or of one of its ``samples`` samples."""
        if self.trust is Trust.SECURE_AGGREGATION:
            return summable(mechanism).sum_privacy(cast(int, self.min_honest_clients), self.adjacency)
        return mechanism.privacy(self.adjacency, samples).under(trust=self.trust)

    def account(self, mechanism: Mechanism, sizes: NDArray[np.int64]) -> Account:
        """The account of a run with clients of these sizes; a mechanism without one is refused."""
        return Account(lambda samples: self.release(mechanism, samples), sizes, self.unit is Unit.SAMPLE)

    def _found(self, ball: Ball, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> Mechanism:
        """Calibrated to the budget."""
        budget, busiest = cast(float, self.epsilon), max(1, int(counts.max()))
        if self.trust is Trust.SECURE_AGGREGATION:
            return calibrate_sum(
                ball=ball, epsilon=budget, delta=self.delta, adjacency=self.adjacency, clients=self.cohort,
                min_honest_clients=self.min_honest_clients, releases=busiest, bits=self.bits or 1,
                decoder=cast(Any, self.decoder or UNBIASED), keep=self.keep,
            ).mechanism  # fmt: skip
        sample = self.unit is Unit.SAMPLE

        def worst(mechanism: Mechanism) -> Guarantee:
            """What a sample of the most exposed client will have spent: the account that the run will keep."""
            account = self.account(mechanism, sizes)
            account.counts = counts
            return account.worst(self.delta)

        found = calibrate(
            CENTRAL if self.trust is Trust.CENTRAL else self.mechanism, ball=ball, epsilon=budget, delta=self.delta,
            adjacency=self.adjacency, releases=busiest, account=worst if sample else None,
            samples=int(sizes.min()) if sample else None, keep=self.keep, bit_epsilon=self._bit_epsilon(busiest),
            **self._choices(),
        )  # fmt: skip
        if sample and found.saturated:
            raise InvalidParameter(
                f"beta must be above {self.beta or 1.0:g} to make use of epsilon {budget:g}: one of {int(sizes.min())} "
                f"samples moves an input by little, and {self.mechanism} can reveal no more of it."
            )
        return found.mechanism

    def _bit_epsilon(self, releases: int) -> float | None:
        """What the bit of a clip that moves costs in a release; None where the clip stays."""
        if self.clip_quantile is None or self.clip_bit_epsilon is not None:
            return self.clip_bit_epsilon
        return usual_bit_epsilon(cast(float, self.epsilon), self.delta, releases)

    def _given(self, ball: Ball, samples: int) -> Mechanism:
        """Built as told."""
        chosen, given = family(self.mechanism), self._choices()
        noise = chosen.strength == "noise_multiplier"
        strength = cast(float, self.noise_multiplier) / samples if noise else cast(float, self.design_epsilon)
        sums = self.trust is Trust.SECURE_AGGREGATION
        if sums and (self.bits or 1) > 1:
            # Sums of codes of several bits need evenly spaced values, which a solved design does not have.
            given["design"] = binomial_design(cast(int, self.bits), strength)
        own = self.keep if "keep" in chosen.uses else None  # others keep coordinates by a wrapper

        def built(within: Ball) -> Mechanism:
            return chosen.given(within, strength, Choices(**given, keep=own, by_sample=self.unit is Unit.SAMPLE))

        if self.keep is None or own is not None:
            return built(ball)
        found = project(ball, self.keep, built)
        if self.unit is Unit.SAMPLE:
            return ProjectedSamples(found)
        return found.at(0) if sums else found  # behind masks all clients of a round keep the same rows

    def _choices(self) -> dict[str, Any]:
        """What the family of the mechanism makes use of; the rest of the plan's defaults is nobody's choice."""
        uses = () if self.mechanism == AUTO else family(self.mechanism).uses
        return {name: getattr(self, name) for name in uses if name in USUAL}


def _summed() -> list[str]:
    """Families whose codes may be added behind masks."""
    return [one.name for one in families().values() if hasattr(one.kinds[0], "sum_privacy")]
