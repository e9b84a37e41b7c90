"""The settings of a private run: one table of run-config keys.

Idea     whoever starts a run says what it wants and what it may cost. The server chooses the mechanism from these words
         and sends it to the nodes in full; a node reads of them what the run promises (its budget, its trust), holds
         that beside its owner's policy, and believes nothing more. A key that begins like ours and is none is refused.
Symbols  keys are written ``quietbit.<name>`` in a flat config, or in a table ``[tool.flwr.app.config.quietbit]``.

| key | meaning | default |
|---|---|---|
| `quietbit.mechanism` | `imvu`, `vmvu`, `mvu`, `gaussian`, `laplace`, `sign`, `skellam`, or `auto` | required |
| `quietbit.clip` | radius of the ball that the difference of parameters is clipped to | required |
| `quietbit.epsilon` | what all releases of one client together may cost | required |
| `quietbit.adjacency` | `zero-out` or `replace-one` | required |
| `quietbit.delta` | the delta of that epsilon | 1e-5 |
| `quietbit.norm` | `l2` or `l1` | `l2` |
| `quietbit.releases` | how often a client may answer: the mechanism is calibrated to it | required if calibrated |
| `quietbit.design-epsilon` | the design's epsilon (imvu, mvu), instead of calibrating | calibrated |
| `quietbit.noise-multiplier` | noise in units of the sensitivity (the others), instead of calibrating | calibrated |
| `quietbit.bits`, `levels`, `beta`, `clamp`, `decoder` | as in `quietbit.plan.plan.RoundPlan` | as there |
| `quietbit.keep-coordinates` | how many rotated coordinates are sent, a power of two or `auto` | all |
| `quietbit.clip-quantile` | the share of updates that the clip shall leave alone: it moves every round | fixed |
| `quietbit.clip-rate`, `clip-bit-epsilon` | of a clip that moves, as in `quietbit.plan.plan.RoundPlan` | as there |
| `quietbit.keep` | arrays that are never sent: names with commas between them, `*` allowed | none |
| `quietbit.trust` | `local`, or `secure-aggregation`: the server sees sums over clients alone (imvu) | `local` |
| `quietbit.order` | `open`: the strategy asks whom it likes; `secret`: every node once per epoch, in secret | `open` |
| `quietbit.server` | `active`: sums are secret from a server that lies; or `honest-but-curious` | for sums |
| `quietbit.threshold` | t: clients that must stay in a sum of fewer than 3 t / 2 (active) or 2 t | for sums |
| `quietbit.neighbours`, `share-threshold` | with how many others a client deals, and who recovers its secrets | all |
| `quietbit.min-honest-clients` | k: how many of them do not collude with the server | the threshold |
| `quietbit.timeout` | seconds that keys, shares and unmasking wait for nodes, each | 600 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, final

from quietbit.errors import InvalidParameter, check_int, check_real, member, require
from quietbit.mechanism.ball import Norm
from quietbit.mechanism.base import Mechanism
from quietbit.node.filter import Cap, Price
from quietbit.node.pricing import release_price
from quietbit.plan.plan import RoundPlan
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta
from quietbit.secagg.plan import ServerModel

__all__ = ["PREFIX", "RunSettings"]

PREFIX = "quietbit."
REQUIRED = ("mechanism", "clip", "epsilon", "adjacency")
MOST_RELEASES = 10**9
TIMEOUT = 600.0
CLOSE = 1e-4  # how near a calibrated mechanism comes to the budget
# What a plan calls some of the keys.
ELSEWHERE = {
    "cohort": "threshold",
    "keep": "keep-coordinates",
    "radius": "clip",
    "output_bits": "bits",
    "input_levels": "levels",
}


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
    noise_multiplier: float | None = None
    bits: int | None = None
    levels: int | None = None
    beta: float | None = None
    clamp: bool | None = None
    decoder: str | None = None
    keep: str = ""
    keep_coordinates: int | str | None = None
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_bit_epsilon: float | None = None
    trust: str = "local"
    order: str = "open"
    server: str | None = None
    threshold: int | None = None
    neighbours: int | None = None
    share_threshold: int | None = None
    min_honest_clients: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        """Refuse what a `RoundPlan` refuses, and a calibration without a number of releases."""
        put = object.__setattr__
        require(self.mechanism != "none", "quietbit.mechanism", self.mechanism, "a private mechanism")
        put(self, "epsilon", check_real(self.epsilon, "quietbit.epsilon"))
        with _in_run_config():
            put(self, "delta", check_delta(self.delta))
        _word([member.value for member in Adjacency], self.adjacency, "quietbit.adjacency")
        require(isinstance(self.keep, str), "quietbit.keep", type(self.keep).__name__, "text")
        self._check_trust()
        calibrated = self.plan(self.epsilon).calibrated
        if self.releases is not None:
            require(calibrated, "quietbit.releases", self.releases, "left out when the strength is given by hand")
            put(self, "releases", check_int(self.releases, "quietbit.releases", 1, MOST_RELEASES))
        elif calibrated:
            raise InvalidParameter(
                "quietbit.releases must be given (how often a client may answer), or the strength by hand as "
                "quietbit.design-epsilon or quietbit.noise-multiplier."
            )

    def _check_trust(self) -> None:
        """Whom sums count on: named where there are sums, and nowhere else."""
        put = object.__setattr__
        _word([Trust.LOCAL.value, Trust.SECURE_AGGREGATION.value], self.trust, "quietbit.trust")
        _word(["open", "secret"], self.order, "quietbit.order")
        if self.secure:
            require(
                self.order == "open", "quietbit.order", self.order, "left out for sums, which have their own account"
            )
        if not self.secure:
            for name in ("server", "threshold", "neighbours", "share_threshold", "min_honest_clients", "timeout"):
                rule = "left out unless quietbit.trust is secure-aggregation"
                require(getattr(self, name) is None, PREFIX + name.replace("_", "-"), getattr(self, name), rule)
            return
        if self.threshold is None:
            raise InvalidParameter(
                "quietbit.threshold must be given for secure aggregation: the fewest clients that a sum is made of."
            )
        if self.server is None:
            raise InvalidParameter(
                "quietbit.server must be given for secure aggregation: active (it may lie, and nodes have identities), "
                "or honest-but-curious (it is trusted to follow the protocol)."
            )
        _word([model.value for model in ServerModel], self.server, "quietbit.server")
        given = self.neighbours is None, self.share_threshold is None
        rule = "both given or both left out"
        require(given[0] == given[1], "quietbit.neighbours and quietbit.share-threshold", given, rule)
        if self.neighbours is not None:
            put(self, "neighbours", check_int(self.neighbours, "quietbit.neighbours", 2, MOST_CLIENTS))
            most = self.neighbours + 1
            put(self, "share_threshold", check_int(self.share_threshold, "quietbit.share-threshold", 2, most))
        threshold = check_int(self.threshold, "quietbit.threshold", 2, MOST_CLIENTS)
        put(self, "threshold", threshold)
        known = threshold if self.min_honest_clients is None else self.min_honest_clients
        put(self, "min_honest_clients", check_int(known, "quietbit.min-honest-clients", 2, threshold))
        put(self, "timeout", check_real(TIMEOUT if self.timeout is None else self.timeout, "quietbit.timeout"))

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Read the keys that begin with ``quietbit``; what else the config holds is the app's."""
        known = [field.name.replace("_", "-") for field in fields(cls)]
        ours = {}
        for key, value in config.items():
            if not key.lower().startswith(PREFIX[:-1]):
                continue
            name = key.removeprefix(PREFIX)
            fine = key.startswith(PREFIX) and name in known
            require(fine, "run-config key", key, "one of " + ", ".join(PREFIX + word for word in known))
            ours[name] = value
        missing = [PREFIX + key for key in REQUIRED if key not in ours]
        if missing:
            many = "the key" if len(missing) == 1 else "the keys"
            raise InvalidParameter(f"run config must have {many} {', '.join(missing)}, which {_is(missing)} missing.")
        return cls(**{key.replace("-", "_"): value for key, value in ours.items()})

    def to_run_config(self) -> dict[str, bool | float | int | str]:
        """The flat config these settings are read from; what is None is left out."""
        values = {PREFIX + key.replace("_", "-"): value for key, value in asdict(self).items()}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def cap(self) -> Cap:
        """What the run lets a client spend, as nodes hold it."""
        return Cap(self.epsilon, self.delta, Adjacency(self.adjacency), Trust(self.trust), "the run")

    @property
    def secure(self) -> bool:
        """Whether the server sees sums alone."""
        return Trust(self.trust) is Trust.SECURE_AGGREGATION

    @property
    def active(self) -> bool:
        """Whether sums are secret from a server that lies."""
        return self.server == ServerModel.ACTIVE.value

    def keeps(self, name: str) -> bool:
        """Whether an array of this name is never sent."""
        patterns = [pattern.strip() for pattern in self.keep.split(",")]
        return any(fnmatchcase(name, pattern) for pattern in patterns if pattern)

    def mechanism_for(self, dimension: int) -> Mechanism:
        """The mechanism for updates of this dimension: built as told, or calibrated on the account that nodes keep."""
        return _mechanism(self, dimension)

    def price(self, mechanism: Mechanism) -> Price:
        """What one release of the mechanism costs under the run's trust."""
        return release_price(mechanism, Adjacency(self.adjacency), self.min_honest_clients or 0)

    def plan(self, epsilon: float) -> RoundPlan:
        """The same choices in the words of a plan, whose checks and calibration are used, for a budget."""
        with _in_run_config():
            return RoundPlan(
                self.mechanism,
                clip=self.clip,
                adjacency=Adjacency(self.adjacency),
                norm=member(Norm, self.norm, "quietbit.norm"),
                epsilon=epsilon,
                delta=self.delta,
                trust=Trust(self.trust),
                releases=self.releases,
                cohort=self.threshold or 1,
                min_honest_clients=self.min_honest_clients,
                design_epsilon=self.design_epsilon,
                noise_multiplier=self.noise_multiplier,
                bits=self.bits,
                levels=self.levels,
                beta=self.beta,
                clamp=self.clamp,
                decoder=self.decoder,
                keep=self.keep_coordinates,
                clip_quantile=self.clip_quantile,
                clip_rate=self.clip_rate,
                clip_bit_epsilon=self.clip_bit_epsilon,
            )


@lru_cache(maxsize=8)
def _mechanism(settings: RunSettings, dimension: int) -> Mechanism:
    """A node stops by sums at fixed orders (`node.filter`), which is a little above the tightest account.

    So the target is lowered until all releases together fit under the node's account of the budget.
    """
    target, cap = settings.epsilon, settings.cap
    with _in_run_config():
        found = settings.plan(target).mechanism_for(dimension)
    if settings.releases is None:
        return found
    for _ in range(8):
        reached = cap.epsilon_upper(Price.total([(settings.price(found), settings.releases)]))
        if reached <= settings.epsilon:
            return found
        target *= settings.epsilon / reached * (1 - CLOSE)
        found = settings.plan(target).mechanism_for(dimension)
    raise InvalidParameter(
        f"quietbit.epsilon must be one that {settings.mechanism} can meet, got {settings.epsilon!r}."
    )


@contextmanager
def _in_run_config() -> Iterator[None]:
    """Let a refusal name the run-config key that whoever wrote the run config knows, as ``quietbit.clip``."""
    try:
        yield
    except InvalidParameter as error:
        head, must, rest = str(error).partition(" must ")
        names = {field.name for field in fields(RunSettings)} | set(ELSEWHERE)
        long = {name for name in names if "_" in name}  # the others are ordinary words in the rest of a sentence
        raise InvalidParameter(_renamed(head, names) + must + _renamed(rest, long)) from None


def _renamed(text: str, names: set[str]) -> str:
    return re.sub(rf"(?<![\w.])({'|'.join(sorted(names))})(?!\w)", _key, text)


def _key(name: re.Match[str]) -> str:
    return PREFIX + ELSEWHERE.get(name[0], name[0]).replace("_", "-")


def _is(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"


def _word(known: list[str], word: Any, name: str) -> None:
    require(isinstance(word, str) and word in known, name, word, "one of " + ", ".join(known))
