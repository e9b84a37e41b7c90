"""The settings of a private run: one table of run-config keys, read by client and server alike.

Idea     Flower hands every node and the server the same run config, so both ends build the mechanism from the same
         words, and a payload of any other mechanism is refused. `TABLE` is the one place where keys are listed.
Symbols  keys are written ``quietbit.<name>`` in a flat config, or in a table ``[tool.flwr.app.config.quietbit]``.

| key | meaning | default |
|---|---|---|
| `quietbit.mechanism` | `imvu`, `mvu`, `gaussian`, `laplace`, `sign` or `skellam` | required |
| `quietbit.clip` | radius of the ball that the difference of parameters is clipped to | required |
| `quietbit.epsilon` | what all releases of one client together may cost | required |
| `quietbit.adjacency` | `zero-out` or `replace-one` | required |
| `quietbit.delta` | the delta of that epsilon | 1e-5 |
| `quietbit.norm` | `l2` or `l1` | `l2` |
| `quietbit.releases` | how often a client may answer: the mechanism is calibrated to it | required if calibrated |
| `quietbit.design-epsilon` | the design's epsilon (imvu, mvu), instead of calibrating | calibrated |
| `quietbit.noise` | noise in units of the sensitivity (the others), instead of calibrating | calibrated |
| `quietbit.bits`, `levels`, `beta`, `clamp`, `decoder` | as in `quietbit.plan.plan.RoundPlan` | as there |
| `quietbit.keep` | arrays that are never sent: names with commas between them, `*` allowed | none |
| `quietbit.words` | `secure`, or `seeded` for tests and simulations | `secure` |
| `quietbit.seed` | the seed of seeded words | 0 |
| `quietbit.trust` | `local`, or `secure-aggregation`: the server sees sums over clients alone (imvu) | `local` |
| `quietbit.threshold` | t: clients that must stay in a sum of at most 2 t - 1, or it is not made | for sums |
| `quietbit.honest` | k: how many of them do not collude with the server: privacy is accounted at k | the threshold |
| `quietbit.timeout` | seconds that keys, shares and unmasking wait for nodes, each | 600 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, final

from quietbit._validate import InvalidParameter, finite_real, require, whole_number
from quietbit.flower.budget import Budget, read_adjacency, read_trust
from quietbit.mechanism.base import Mechanism, summable
from quietbit.plan.plan import RoundPlan
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta
from quietbit.privacy.release import Release

__all__ = ["PREFIX", "RunSettings"]

PREFIX = "quietbit."
REQUIRED = ("mechanism", "clip", "epsilon", "adjacency")
MOST_RELEASES = 10**9
TIMEOUT = 600.0


@final
@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the table above says, checked.

    Refused: an unknown key, a missing one, a number without a meaning, and a number that plays no part (releases
    beside a strength given by hand, whom sums count on where there are no sums).
    """

    mechanism: str
    clip: float
    epsilon: float
    adjacency: str
    delta: float = 1e-5
    norm: str = "l2"
    releases: int | None = None
    design_epsilon: float | None = None
    noise: float | None = None
    bits: int | None = None
    levels: int | None = None
    beta: float = 1.0
    clamp: bool = False
    decoder: str = "alphabet"
    keep: str = ""
    words: str = "secure"
    seed: int = 0
    trust: str = "local"
    threshold: int | None = None
    honest: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        """Refuse what a `RoundPlan` refuses, and a calibration without a number of releases."""
        put = object.__setattr__
        require(self.mechanism != "none", "quietbit.mechanism", self.mechanism, "a private mechanism")
        put(self, "epsilon", finite_real(self.epsilon, "quietbit.epsilon"))
        put(self, "delta", check_delta(self.delta))
        put(self, "seed", whole_number(self.seed, "quietbit.seed", 0))
        read_adjacency(self.adjacency, "quietbit.adjacency")
        self._check_trust()
        calibrated = self._plan().calibrated
        if self.releases is not None:
            require(calibrated, "quietbit.releases", self.releases, "left out when the strength is given by hand")
            put(self, "releases", whole_number(self.releases, "quietbit.releases", 1, MOST_RELEASES))
        elif calibrated:
            raise InvalidParameter(
                "quietbit.releases must be given (how often a client may answer), or the strength by hand as "
                "quietbit.design-epsilon or quietbit.noise."
            )

    def _check_trust(self) -> None:
        """Whom sums count on: named where there are sums, and nowhere else."""
        put = object.__setattr__
        read_trust(self.trust, "quietbit.trust")
        if not self.secure:
            for name in ("threshold", "honest", "timeout"):
                rule = "left out unless quietbit.trust is secure-aggregation"
                require(getattr(self, name) is None, f"quietbit.{name}", getattr(self, name), rule)
            return
        if self.threshold is None:
            raise InvalidParameter(
                "quietbit.threshold must be given for secure aggregation: the fewest clients that a sum is made of."
            )
        threshold = whole_number(self.threshold, "quietbit.threshold", 2, MOST_CLIENTS)
        put(self, "threshold", threshold)
        known = threshold if self.honest is None else self.honest
        put(self, "honest", whole_number(known, "quietbit.honest", 2, threshold))
        put(self, "timeout", finite_real(TIMEOUT if self.timeout is None else self.timeout, "quietbit.timeout"))

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Read the keys that begin with ``quietbit.``; what else the config holds is the app's."""
        ours = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
        known = [field.name.replace("_", "-") for field in fields(cls)]
        for key in ours:
            require(key in known, "run-config key", PREFIX + key, "one of " + ", ".join(PREFIX + k for k in known))
        for key in REQUIRED:
            if key not in ours:
                raise InvalidParameter(f"run config must have the key {PREFIX}{key}, which is missing.")
        return cls(**{key.replace("-", "_"): value for key, value in ours.items()})

    def to_run_config(self) -> dict[str, bool | float | int | str]:
        """The flat config these settings are read from; what is None is left out."""
        values = {PREFIX + key.replace("_", "-"): value for key, value in asdict(self).items()}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def budget(self) -> Budget:
        """What the run lets a client spend."""
        return Budget(self.epsilon, self.delta, self.privacy_adjacency, "the run", self.privacy_trust)

    @property
    def privacy_adjacency(self) -> Adjacency:
        """Which worlds must look alike."""
        return read_adjacency(self.adjacency, "quietbit.adjacency")

    @property
    def privacy_trust(self) -> Trust:
        """Who may look."""
        return read_trust(self.trust, "quietbit.trust")

    @property
    def secure(self) -> bool:
        """Whether the server sees sums alone."""
        return self.privacy_trust is Trust.SECURE_AGGREGATION

    def keeps(self, name: str) -> bool:
        """Whether an array of this name is never sent."""
        patterns = [pattern.strip() for pattern in self.keep.split(",")]
        return any(fnmatchcase(name, pattern) for pattern in patterns if pattern)

    def mechanism_for(self, dimension: int) -> Mechanism:
        """The mechanism for updates of this dimension: built as told, or calibrated; the same at both ends."""
        return _mechanism(self, dimension)

    def curve(self, mechanism: Mechanism) -> Release:
        """What one release of the mechanism costs under the run's trust."""
        if self.honest is None:
            return mechanism.privacy(self.privacy_adjacency)
        return summable(mechanism).sum_privacy(self.honest, self.privacy_adjacency)

    def _plan(self) -> RoundPlan:
        """The same choices in the words of a plan, whose checks and calibration are used."""
        return RoundPlan(
            self.mechanism, clip=self.clip, adjacency=self.adjacency, norm=self.norm, epsilon=self.epsilon,
            delta=self.delta, trust=self.trust, releases=self.releases, cohort=self.threshold or 1,
            min_honest_clients=self.honest, design_epsilon=self.design_epsilon, noise_multiplier=self.noise,
            bits=self.bits, levels=self.levels, beta=self.beta, clamp=self.clamp, decoder=self.decoder, rng=self.words,
            seed=self.seed,
        )  # type: ignore[arg-type]  # fmt: skip


@lru_cache(maxsize=8)
def _mechanism(settings: RunSettings, dimension: int) -> Mechanism:
    return settings._plan().mechanism_for(dimension)
