"""What an owner allows: one file on the node, written by `quietbit node init`, that no run can change.

Idea     a run asks; the policy says what may be answered. It caps everything the node ever releases, whatever run or
         server it is for, and names what may be asked at all. Without one, nothing is released. A simulation has
         no owner, so it gets rules of its own (`Simulation`), which must be named where the app is written.
Symbols  the keys of the file are the fields of `Policy`, with - for _; unknown ones are refused.

| key | meaning | default |
|---|---|---|
| `epsilon`, `delta`, `adjacency` | what all releases together may cost, ever | required |
| `mechanisms` | families that may be asked for: `imvu`, `mvu`, ... | required |
| `largest-clip` | the largest ball that updates may be clipped to | required |
| `smallest-clip` | the smallest, where a run moves its clip | 0 |
| `releases`, `releases-per-day` | how many releases there may be, in all and in any 24 hours | required |
| `ledger`, `counter` | absolute paths of the two files; best on two disks | required |
| `least-epsilon` | a release counts at least as much as one of this pure epsilon | 0 |
| `runs` | numbers of the runs that are answered, or `*` | `["*"]` |
| `trust` | `local`, `secure-aggregation` or both | `["local"]` |
| `min-honest-clients` | k: every sum is priced at so many honest clients, whatever the run says | for sums |
| `local-epsilon` | a second cap: everything priced as if every mask had failed | for sums |
| `directory` | absolute path of the list of members: sums are then secret from a server that lies | none |
| `operator` | the public key that the directory must be signed with, hexadecimal | with `directory` |
| `own-key` | absolute path of this node's private key (`quietbit node keys`) | with `directory` |
| `most-colluders` | how many members may work for the server: sums that so many could unmask are declined | 0 |
| `largest-exposure` | the largest chance, per sum, that so many could | 2^-40 |
| `min-neighbours` | with how many others each client must deal, where it does not deal with all | 10 |
| `metrics` | numbers of evaluations that leave the node as they are, without privacy | none |
| `answer-seconds` | every answer leaves so long after its question, whatever the app does; 0: when it is ready | 60 |
| `pricing-seconds` | how long it may take to find out what a mechanism costs | 30 |
| `seed` | randomness that anybody can repeat, for tests of a deployment: protects nobody | none |
"""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

from quietbit.errors import InvalidParameter, QuietbitError, check_int, check_real, member, require
from quietbit.kernel.rng import RandomBits, secure_rng
from quietbit.node.filter import Cap
from quietbit.privacy.aggregate import MOST_CLIENTS
from quietbit.privacy.guarantee import Adjacency, Trust, check_delta
from quietbit.secagg.identity import PUBLIC_SIZE, Directory, Identity
from quietbit.secagg.plan import SumPlan
from quietbit.simulate.client_rng import CLIENT_BITS, seeded_client_rng

__all__ = ["NotAllowed", "Policy", "PolicyError", "Rules", "SeededRngWarning", "Simulation", "simulated_directory"]

MOST_RELEASES = 10**6
MOST_BYTES = 2**16
RISK = 2.0**-40  # the largest chance that a sum with few neighbours can be unmasked


class NotAllowed(QuietbitError):
    """The owner's policy does not allow what was asked; the sentence names the rule and not its number."""


class PolicyError(QuietbitError, ValueError):
    """A policy that cannot be read or means nothing; the sentence is for the owner, and for nobody else."""


class SeededRngWarning(UserWarning):
    """Releases are made with random bits that anyone can repeat."""


class Rules(Protocol):
    """What a keeper asks of a policy, or of the rules of a simulation."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Numbers that may leave as they are."""
        ...

    @property
    def least_epsilon(self) -> float:
        """What a release costs at least."""
        ...

    @property
    def answer_seconds(self) -> float:
        """How long after a question its answer leaves; 0: when it is ready."""
        ...

    @property
    def pricing_seconds(self) -> float:
        """How long a price may take."""
        ...

    def caps(self) -> tuple[Cap, ...]:
        """Limits on the whole ledger."""
        ...

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """How many honest clients a release of this trust is priced at; 0 where the server sees it."""
        ...

    def check(self, family: str, clip: float, run: str) -> None:
        """Refuse what may not be asked."""
        ...

    def check_counts(self, releases: int, today: int) -> None:
        """Refuse one release more than there may be."""
        ...

    def rng(self, number: int, client: int | None) -> RandomBits:
        """The random bits of a release in round ``number``."""
        ...

    def identity(self, client: int | None) -> Identity | None:
        """What this node signs with in sums; None where its owner trusts servers to follow the protocol."""
        ...

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """The public keys of the members at these places of the directory."""
        ...

    def check_sum(self, plan: SumPlan) -> None:
        """Refuse a sum that could be unmasked by as many colluders as there may be."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The table above, checked; `load` reads a file and `text` writes one."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    mechanisms: tuple[str, ...]
    largest_clip: float
    releases: int
    releases_per_day: int
    ledger: str
    counter: str
    smallest_clip: float = 0.0
    least_epsilon: float = 0.0
    runs: tuple[str, ...] = ("*",)
    trust: tuple[Trust, ...] = (Trust.LOCAL,)
    min_honest_clients: int | None = None
    local_epsilon: float | None = None
    directory: str | None = None
    operator: str | None = None
    own_key: str | None = None
    most_colluders: int = 0
    largest_exposure: float = RISK
    min_neighbours: int = 10
    metrics: tuple[str, ...] = ()
    answer_seconds: float = 60.0
    pricing_seconds: float = 30.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers and words without a meaning, and sums without their two rules."""
        put = object.__setattr__
        put(self, "epsilon", check_real(self.epsilon, "epsilon"))
        put(self, "delta", check_delta(self.delta))
        put(self, "adjacency", member(Adjacency, self.adjacency, "adjacency"))
        put(self, "mechanisms", _words(self.mechanisms, "mechanisms"))
        require(self.mechanisms, "mechanisms", [], "one name at least")
        put(self, "largest_clip", check_real(self.largest_clip, "largest-clip"))
        put(self, "releases", check_int(self.releases, "releases", 1, MOST_RELEASES))
        put(self, "releases_per_day", check_int(self.releases_per_day, "releases-per-day", 1, MOST_RELEASES))
        for name in ("smallest_clip", "least_epsilon", "answer_seconds"):
            floor = getattr(self, name)
            none = floor == 0 and not isinstance(floor, bool)
            put(self, name, 0.0 if none else check_real(floor, name.replace("_", "-")))
        rule = f"at most {self.largest_clip!r}, the largest"
        require(self.smallest_clip <= self.largest_clip, "smallest-clip", self.smallest_clip, rule)
        put(self, "runs", _words(self.runs, "runs"))
        put(self, "trust", tuple(member(Trust, word, "trust") for word in _listed(self.trust, "trust")))
        known = bool(self.trust) and set(self.trust) <= {Trust.LOCAL, Trust.SECURE_AGGREGATION}
        require(known, "trust", [word.value for word in self.trust], "local, secure-aggregation or both")
        put(self, "metrics", _words(self.metrics, "metrics"))
        put(self, "pricing_seconds", check_real(self.pricing_seconds, "pricing-seconds"))
        for name in ("ledger", "counter"):
            path = getattr(self, name)
            fine = isinstance(path, str | os.PathLike) and Path(path).expanduser().is_absolute()
            require(fine, name, path, "the absolute path of a file")
            put(self, name, str(path))
        if self.seed is not None:
            put(self, "seed", check_int(self.seed, "seed", 0))
        self._check_sums()

    def _check_sums(self) -> None:
        put = object.__setattr__
        named = ("directory", "operator", "own_key")
        put(self, "most_colluders", check_int(self.most_colluders, "most-colluders", 0, MOST_CLIENTS))
        put(self, "min_neighbours", check_int(self.min_neighbours, "min-neighbours", 2, MOST_CLIENTS))
        exposure = check_real(self.largest_exposure, "largest-exposure", at_least=0.0, at_most=2.0**-20)
        put(self, "largest_exposure", exposure)
        if Trust.SECURE_AGGREGATION not in self.trust:
            for name in ("min_honest_clients", "local_epsilon", *named):
                rule = "left out unless trust names secure-aggregation"
                require(getattr(self, name) is None, name.replace("_", "-"), getattr(self, name), rule)
            return
        given = [name for name in named if getattr(self, name) is not None]
        rule = "all given, for sums that are secret from a server that lies, or all left out"
        require(len(given) in (0, 3), "directory, operator and own-key", ", ".join(given), rule)
        if given:
            for name in ("directory", "own_key"):
                path = getattr(self, name)
                fine = isinstance(path, str) and Path(path).expanduser().is_absolute()
                require(fine, name.replace("_", "-"), path, "the absolute path of a file")
            self._operator()
        for name in ("min_honest_clients", "local_epsilon"):
            if getattr(self, name) is None:
                raise InvalidParameter(f"{name.replace('_', '-')} must be given beside trust = secure-aggregation.")
        put(self, "min_honest_clients", check_int(self.min_honest_clients, "min-honest-clients", 2, MOST_CLIENTS))
        put(self, "local_epsilon", check_real(self.local_epsilon, "local-epsilon"))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Policy:
        """Read the keys of a file; an unknown or a missing one is refused."""
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        for key in table:
            require(key in known, "key of the policy", key, "one of " + ", ".join(known))
        for key in ("epsilon", "delta", "adjacency", "mechanisms", "largest-clip", "releases", "releases-per-day",
                    "ledger", "counter"):  # fmt: skip
            if key not in table:
                raise InvalidParameter(f"policy must have the key {key}, which is missing.")
        return cls(**{known[key]: value for key, value in table.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file; one that others than its owner may write is refused."""
        place = Path(path).expanduser()
        try:
            require(place.is_absolute(), "path of the policy", str(path), "an absolute path")
            return cls.from_table(_table(place))
        except OSError as error:
            raise PolicyError(f"Cannot read the policy {place}: {error.strerror}.") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PolicyError(f"The policy {place} is no TOML: {error}.") from error
        except InvalidParameter as error:
            raise PolicyError(f"In {place}: {error}") from error

    def text(self) -> str:
        """The file, with a line on each key."""
        return "\n".join(
            [
                "# What this node releases, at most and ever. Only its owner changes this file; a run cannot.",
                f"epsilon = {self.epsilon!r}            # what all releases together may cost",
                f"delta = {self.delta!r}              # the delta of that epsilon",
                f'adjacency = "{self.adjacency.value}"',
                f"mechanisms = {_toml(self.mechanisms)}",
                f"largest-clip = {self.largest_clip!r}       # updates are clipped to a ball no larger than this",
                *(
                    [f"smallest-clip = {self.smallest_clip!r}      # nor to one smaller than this"]
                    if self.smallest_clip
                    else []
                ),
                f"releases = {self.releases}            # in all",
                f"releases-per-day = {self.releases_per_day}    # in any 24 hours",
                f"least-epsilon = {self.least_epsilon!r}      # a release never counts less than this",
                f'runs = {_toml(self.runs)}             # numbers of runs, or "*"',
                f"trust = {_toml(tuple(word.value for word in self.trust))}",
                *(
                    [
                        f"min-honest-clients = {self.min_honest_clients}   # sums are priced at so many",
                        f"local-epsilon = {self.local_epsilon!r}      # the cap if every mask failed",
                        f"most-colluders = {self.most_colluders}       # members that may work for the server",
                        f"largest-exposure = {self.largest_exposure!r}   # the chance that they unmask a sum",
                        f"min-neighbours = {self.min_neighbours}       # whom each deals with, if not with all",
                    ]
                    if self.min_honest_clients is not None
                    else []
                ),
                *(
                    [
                        f"directory = {_toml(self.directory)}   # who the members of sums are",
                        f"operator = {_toml(self.operator)}   # whose signature the directory must have",
                        f"own-key = {_toml(self.own_key)}   # what this node signs with",
                    ]
                    if self.directory is not None
                    else []
                ),
                f"metrics = {_toml(self.metrics)}             # numbers that leave with no privacy at all",
                f"answer-seconds = {self.answer_seconds!r}     # an answer leaves so long after its question",
                f"pricing-seconds = {self.pricing_seconds!r}",
                *([f"seed = {self.seed}   # for tests: protects nobody"] if self.seed is not None else []),
                "# The ledger and its counter: made by `quietbit node init`. Keep them on two disks if you can.",
                f"ledger = {_toml(self.ledger)}",
                f"counter = {_toml(self.counter)}",
                "",
            ]
        )

    def caps(self) -> tuple[Cap, ...]:
        """The cap, and where sums are allowed the local one."""
        words = self.delta, self.adjacency
        if self.local_epsilon is None:
            return (Cap(self.epsilon, *words, Trust.LOCAL),)
        return Cap(self.epsilon, *words, Trust.SECURE_AGGREGATION), Cap(self.local_epsilon, *words, Trust.LOCAL)

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """The node's own least number, for sums of at least so many; the run's is not looked at."""
        if trust not in self.trust:
            raise NotAllowed(f"This node's policy does not allow {trust.value} trust.")
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        own = self.min_honest_clients or MOST_CLIENTS
        if threshold is None or not threshold >= own:
            raise NotAllowed("This node's policy does not allow sums of so few clients.")
        return own

    def check(self, family: str, clip: float, run: str) -> None:
        """Refuse another family, a larger ball or one that is too small, another run."""
        if family not in self.mechanisms:
            raise NotAllowed(f"This node's policy does not allow the mechanism {family[:40]!r}.")
        if not clip <= self.largest_clip:
            raise NotAllowed("This node's policy does not allow so large a clip.")
        if not clip >= self.smallest_clip:
            raise NotAllowed("This node's policy does not allow so small a clip.")
        if "*" not in self.runs and run not in self.runs:
            raise NotAllowed("This node's policy does not allow this run.")

    def check_counts(self, releases: int, today: int) -> None:
        """Refuse a release beyond the number in all, or of any 24 hours."""
        if not releases <= self.releases:
            raise NotAllowed("This node's policy allows no more releases.")
        if not today <= self.releases_per_day:
            raise NotAllowed("This node's policy allows no more releases today.")

    def rng(self, number: int, client: int | None) -> RandomBits:
        """The operating system's, unless the owner has written a seed into the policy."""
        return secure_rng() if self.seed is None else _seeded(self.seed, number, client)

    def identity(self, client: int | None) -> Identity | None:
        """The key in the file that the policy names."""
        if self.own_key is None:
            return None
        try:
            return Identity.load(Path(self.own_key).expanduser())
        except QuietbitError as error:
            raise PolicyError(str(error)) from error

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Of the directory that the operator has signed."""
        if self.directory is None:
            raise NotAllowed("This node's policy names no directory of members, which such sums need.")
        try:
            found = Directory.load(Path(self.directory).expanduser(), self._operator())
        except QuietbitError as error:
            raise PolicyError(str(error)) from error
        return found.keys(places)

    def check_sum(self, plan: SumPlan) -> None:
        """Refuse a server that must be believed where there is a directory, and sums that colluders could unmask."""
        if self.directory is not None and not plan.active:
            raise NotAllowed("This node's policy does not allow sums whose server must be believed.")
        if plan.neighbours is not None and not plan.neighbours >= self.min_neighbours:
            raise NotAllowed("This node's policy does not allow sums in which clients deal with so few others.")
        honest = min(self.min_honest_clients or MOST_CLIENTS, plan.clients)
        if not plan.exposure_upper(self.most_colluders, honest) <= self.largest_exposure:
            raise NotAllowed("This node's policy does not allow sums that so few colluding clients could unmask.")

    def _operator(self) -> bytes:
        try:
            found = bytes.fromhex(self.operator or "")
        except (TypeError, ValueError):
            found = b""
        require(
            len(found) == PUBLIC_SIZE, "operator", self.operator, f"a public key: {2 * PUBLIC_SIZE} hexadecimal digits"
        )
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The rules of nodes that belong to nobody: whatever the run asks, within the run's own budget.

    With a ``seed``, randomness is that of the engine-free simulator. ``metrics`` leave as they are. Sums are priced at
    ``min_honest_clients``, the run's number unless given.
    """

    seed: int | None = None
    metrics: tuple[str, ...] = ()
    min_honest_clients: int | None = None
    least_epsilon: float = 0.0
    answer_seconds: float = 0.0
    pricing_seconds: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what is no seed and no list of names."""
        if self.seed is not None:
            object.__setattr__(self, "seed", check_int(self.seed, "seed", 0))
        object.__setattr__(self, "metrics", _words(self.metrics, "metrics"))

    def caps(self) -> tuple[Cap, ...]:
        """None but the run's."""
        return ()

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """The run's word, or the simulation's own."""
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        return check_int(self.min_honest_clients or honest, "honest clients of the sum", 2)

    def check(self, family: str, clip: float, run: str) -> None:
        """Everything may be asked."""

    def check_counts(self, releases: int, today: int) -> None:
        """As often as the run's budget allows."""

    def rng(self, number: int, client: int | None) -> RandomBits:
        """The simulator's, where there is a seed."""
        return secure_rng() if self.seed is None else _seeded(self.seed, number, client)

    def identity(self, client: int | None) -> Identity | None:
        """One that anybody can make, of this number among the simulated nodes (its ``partition-id``)."""
        if client is None:
            raise InvalidParameter("node config must have a partition-id for a simulated identity, and it is missing.")
        return _simulated(client)

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Simulated nodes are members by their numbers."""
        return tuple(_simulated(place).public for place in places)

    def check_sum(self, plan: SumPlan) -> None:
        """Whatever the run asks."""


def simulated_directory(nodes: int) -> Directory:
    """The directory of simulated nodes with partition-ids from 0; anybody can sign for them, so it protects nobody."""
    return Directory.of((f"simulated node {place}", _simulated(place).public) for place in range(nodes))


@lru_cache(maxsize=1 << 14)
def _simulated(place: int) -> Identity:
    return Identity(hashlib.sha256(b"quietbit/simulation/identity/%d" % place).digest())


def _seeded(seed: int, number: int, client: int | None) -> RandomBits:
    warnings.warn("The randomness is seeded: these releases protect nobody.", SeededRngWarning, 3)
    if client is None:
        raise InvalidParameter("node config must have a partition-id for seeded randomness, and it is missing.")
    return seeded_client_rng(seed)(number - 1, check_int(client, "partition-id", 0, 2**CLIENT_BITS - 1))


def _table(place: Path) -> dict[str, Any]:
    """The keys of the file."""
    with os.fdopen(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        require(stat.S_ISREG(mode), "policy", str(place), "a regular file")
        rule = "a file that only its owner can write (chmod go-w)"
        require(not mode & (stat.S_IWGRP | stat.S_IWOTH), "policy", str(place), rule)
        data = file.read(MOST_BYTES + 1)
    require(len(data) <= MOST_BYTES, "size of the policy", len(data), f"at most {MOST_BYTES} bytes")
    return tomllib.loads(data.decode("utf-8"))


def _listed(value: Any, name: str) -> tuple[Any, ...]:
    require(isinstance(value, list | tuple), name, value, "a list")
    return tuple(value)


def _words(value: Any, name: str) -> tuple[str, ...]:
    found = _listed(value, name)
    require(all(isinstance(word, str) and word for word in found), name, value, "a list of names")
    return found


def _toml(value: Any) -> str:
    """A word or a list of words as TOML; control characters are escaped."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(word) for word in value) + "]"
    quoted = "".join(
        f"\\{letter}" if letter in '"\\' else letter if letter.isprintable() else f"\\u{ord(letter):04x}"
        for letter in value
    )
    return f'"{quoted}"'
