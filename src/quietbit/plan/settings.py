"""Everything that is chosen before a run: one frozen value, written into the record and read from it.

Idea     a run is a function of its settings, its task and its words. A setting that its mechanism does not
         use is refused, so that no record claims a number that played no part.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters", for the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from quietbit._validate import InvalidParameter, finite_real, require, whole_number
from quietbit.design.binomial import MOST_BINOMIAL_BITS
from quietbit.mechanism.ball import Norm
from quietbit.plan.problem import LocalPlan
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Trust, Unit, check_delta

__all__ = ["MECHANISMS", "Settings"]

MECHANISMS = ("imvu", "mvu", "gaussian", "laplace", "sign", "skellam", "none")
DESIGNED, NOISY = ("imvu", "mvu"), ("gaussian", "laplace", "sign", "skellam")
WORDS = ("secure", "seeded")


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of a run.

    ``epsilon`` is the design's (imvu, mvu); ``noise`` is the noise in units of the sensitivity (gaussian,
    laplace, sign, skellam). Left out, they are calibrated so that all of the worst client's releases
    together meet ``target_epsilon``; given, a target stops the run before it would be exceeded. ``lr`` is
    the server's step on the mean of the decoded updates, after momentum. ``seed`` fixes the starting
    point and who takes part when; with ``words`` seeded it fixes the randomisation too.

    ``trust`` says who may look. ``local``: the server sees every payload. ``secure-aggregation`` (imvu): it sees
    sums of codes over a cohort, of which ``honest`` clients, the whole cohort unless said, answer in every round
    and do not collude; a target is then met by solving for beta, with inputs clamped. ``central`` (gaussian): the
    server is trusted with clipped updates and adds the noise once, to their sum.
    """

    mechanism: str
    lr: float
    rounds: int
    cohort: int
    clip: float
    norm: str = "l2"
    epsilon: float | None = None
    noise: float | None = None
    bits: int | None = None
    levels: int | None = None
    beta: float = 1.0
    clamp: bool = False
    decoder: str = "alphabet"
    momentum: float = 0.5
    unit: str = "client"
    adjacency: str = "zero-out"
    delta: float = 1e-5
    target_epsilon: float | None = None
    participation: str = "each-once"
    local_steps: int = 1
    local_rate: float = 0.1
    evaluate_every: int = 0
    evaluate_at: tuple[int, ...] = ()
    seed: int = 0
    words: str = "secure"
    trust: str = "local"
    honest: int | None = None

    def __post_init__(self) -> None:
        """Refuse words that are none of ours, and numbers without a meaning."""
        put = object.__setattr__
        require(self.mechanism in MECHANISMS, "mechanism", self.mechanism, "one of " + ", ".join(MECHANISMS))
        require(self.words in WORDS, "words", self.words, "one of " + ", ".join(WORDS))
        put(self, "lr", finite_real(self.lr, "lr"))
        put(self, "rounds", whole_number(self.rounds, "rounds", 1))
        put(self, "cohort", whole_number(self.cohort, "cohort", 1))
        put(self, "seed", whole_number(self.seed, "seed", 0))
        put(self, "evaluate_every", whole_number(self.evaluate_every, "evaluate_every", 0))
        put(self, "evaluate_at", tuple(whole_number(t, "evaluate_at", 1, self.rounds) for t in self.evaluate_at))
        put(self, "delta", check_delta(self.delta))
        momentum = float(self.momentum) if not isinstance(self.momentum, bool | str) else float("nan")
        require(0 <= momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        _word(Norm, self.norm, "norm")
        _word(Unit, self.unit, "unit")
        _word(Adjacency, self.adjacency, "adjacency")
        self.plan  # noqa: B018 - refuses clip, steps and rate that make no plan
        self._check_strength()
        self._check_trust()

    def _check_trust(self) -> None:
        """Only what has an account under the trust model, and the clients that it counts on."""
        trust = self.privacy_trust
        secure = trust is Trust.SECURE_AGGREGATION
        require(secure or self.honest is None, "honest", self.honest, "left out unless trust is secure-aggregation")
        if trust is Trust.LOCAL:
            return
        name = "imvu" if secure else "gaussian"
        require(self.mechanism == name, "mechanism", self.mechanism, f"{name} under {trust.value} trust")
        require(self.privacy_unit is Unit.CLIENT, "unit", self.unit, f"client under {trust.value} trust")
        if secure:
            whole_number(self.cohort, "cohort", 2, MOST_CLIENTS)
            known = self.cohort if self.honest is None else self.honest
            object.__setattr__(self, "honest", whole_number(known, "honest", 2, self.cohort))
            width = whole_number(self.bits or 1, "bits", 1, MOST_BINOMIAL_BITS)
            even = width == 1 or self.levels in (None, 2)
            require(even, "levels", self.levels, "left out for sums of codes of several bits")
            free = not self.calibrated or (self.beta == 1.0 and not self.clamp)
            rule = "left out: for a target under secure aggregation they are chosen"
            require(free, "beta and clamp", (self.beta, self.clamp), rule)

    def _check_strength(self) -> None:
        """Exactly the number that belongs to the mechanism, or a target to find it for."""
        if self.target_epsilon is not None:
            object.__setattr__(self, "target_epsilon", finite_real(self.target_epsilon, "target_epsilon"))
        private = self.mechanism != "none"
        require(
            private or self.target_epsilon is None, "target_epsilon", self.target_epsilon, "left out without privacy"
        )
        for name, users in (("epsilon", DESIGNED), ("noise", NOISY)):
            value = getattr(self, name)
            if value is None:
                continue
            rule = f"left out for {self.mechanism} (it is for {', '.join(users)})"
            require(self.mechanism in users, name, value, rule)
            object.__setattr__(self, name, finite_real(value, name))
        if private and self.epsilon is None and self.noise is None and self.target_epsilon is None:
            name = "epsilon" if self.mechanism in DESIGNED else "noise"
            raise InvalidParameter(f"{name} must be given for {self.mechanism}, or a target_epsilon to find it for.")

    @property
    def calibrated(self) -> bool:
        """Whether the mechanism's strength is to be found from the target."""
        return self.mechanism != "none" and self.epsilon is None and self.noise is None

    @property
    def plan(self) -> LocalPlan:
        """What clients do."""
        norm, unit = _word(Norm, self.norm, "norm"), _word(Unit, self.unit, "unit")
        return LocalPlan(norm, self.clip, unit, self.local_steps, self.local_rate)

    @property
    def privacy_unit(self) -> Unit:
        """Whose data is protected."""
        unit: Unit = _word(Unit, self.unit, "unit")
        return unit

    @property
    def privacy_adjacency(self) -> Adjacency:
        """Which worlds must look alike."""
        adjacency: Adjacency = _word(Adjacency, self.adjacency, "adjacency")
        return adjacency

    @property
    def privacy_trust(self) -> Trust:
        """Who may look."""
        trust: Trust = _word(Trust, self.trust, "trust")
        return trust

    def evaluated(self, number: int) -> bool:
        """Whether the model is scored after ``number`` rounds: at the end, and where asked for."""
        every = self.evaluate_every
        return number == self.rounds or number in self.evaluate_at or bool(every and number % every == 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from a record or a sweep; an unknown name is refused."""
        known = [field.name for field in fields(cls)]
        for name in values:
            require(name in known, "setting", name, "one of " + ", ".join(known))
        given = dict(values)
        if "evaluate_at" in given:
            given["evaluate_at"] = tuple(given["evaluate_at"])
        try:
            return cls(**given)
        except TypeError as error:
            raise InvalidParameter(f"settings are not complete: {error}.") from None


def _word(family: Any, text: str, name: str) -> Any:
    known = {member.value: member for member in family}
    require(text in known, name, text, "one of " + ", ".join(known))
    return known[text]
