"""What an owner allows: one file on the node, written by `init` once, that no run can change.

Idea     a run asks; the policy says what may be answered. It caps everything the node ever
         releases, whatever run or server it is for, and names what may be asked at all. Without
         one, nothing is released. A simulation has no owner, so it gets rules of its own
         (`Simulation`), which must be named where the app is written.
Symbols  the keys of the file are the fields of `Policy`, with - for _; unknown ones are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
import warnings
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import attrs
from attrs import NOTHING, field, frozen

from quietbit._files import write_whole
from quietbit.errors import (
    InvalidParameter,
    QuietbitError,
    check_int,
    check_known,
    check_real,
    require,
)
from quietbit.node.ledger import FileLedger
from quietbit.node.refusal import BudgetSpent, NotAllowed
from quietbit.secagg.identity import OTHERS_WRITE, PUBLIC_SIZE, Directory, Identity, read_file
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit, check_delta

if (
    TYPE_CHECKING
):  # what only a release needs is imported when there is one: `quietbit --help` reads the rules
    from quietbit.kernel.rng import RandomBits
    from quietbit.secagg.plan import SumPlan

__all__ = [
    "Policy",
    "PolicyError",
    "Rules",
    "SeededRngWarning",
    "Simulation",
    "init",
    "simulated_directory",
]

MOST_RELEASES = 10**6
MOST_BYTES = 2**16
RETIRED = ("pricing-seconds",)  # keys of earlier versions, which mean nothing any more
# The families that answer evaluations, in `quietbit.mechanism.registry`: seen by the server, or
# summed behind masks.
RESPONSE, SUMMED = ANSWERING = ("response", "summed-response")
# and the one that answers for the clip: an owner names it among mechanisms, or no scout answers
SCOUT = "scout"
USUAL = (
    "imvu",
    "vmvu",
    SCOUT,
)  # of one bit per parameter, of 80 bytes, and answers for a clip that moves
DIMENSION = (
    2**25
)  # parameters of an update, unless the policy says otherwise: 256 MiB in a gatekeeper
REFUSALS = 10  # runs per day, unless the policy says otherwise
MOST_REFUSALS = 1000
LEAST_EPSILON = 0.001  # of a release, in policies that `init` writes
RISK = 2.0**-40  # the largest chance that a sum with few neighbours can be unmasked


class PolicyError(QuietbitError, ValueError):
    """A policy that cannot be read or means nothing; the sentence is for the owner, and for nobody else."""


class SeededRngWarning(UserWarning):
    """Releases are made with random bits that anyone can repeat."""


_real = check_real
_floor = partial(check_real, at_least=0.0)
_count = partial(check_int, low=1, high=MOST_RELEASES)
_clients = partial(check_int, low=2, high=MOST_CLIENTS)


def _words(value: Any, name: str) -> tuple[str, ...]:
    listed = isinstance(value, list | tuple)
    require(
        listed and all(isinstance(word, str) and word for word in value),
        name,
        value,
        "a list of names",
    )
    return tuple(value)


def _name(value: Any, name: str) -> str:
    require(
        isinstance(value, str) and len(value) <= 200,
        name,
        value,
        "a name of at most 200 characters",
    )
    return str(value)


def _trusts(value: Any, name: str) -> tuple[Trust, ...]:
    rule = "a list of local, secure-aggregation or both"
    require(isinstance(value, list | tuple) and len(value) > 0, name, value, rule)
    words = [getattr(word, "value", word) for word in value]
    known = ("local", "secure-aggregation")
    require(all(word in known for word in words), name, words, rule)
    return tuple(Trust(word) for word in words)


def _path(value: Any, name: str) -> str:
    fine = isinstance(value, str | os.PathLike) and Path(value).expanduser().is_absolute()
    require(fine, name, value, "the absolute path of a file")
    return str(value)


def _key(value: Any, name: str) -> str:
    fine = isinstance(value, str) and re.fullmatch(rf"[0-9a-fA-F]{{{2 * PUBLIC_SIZE}}}", value)
    require(fine, name, value, f"a public key: {2 * PUBLIC_SIZE} hexadecimal digits")
    return str(value)


def _rule(about: str, read: Callable[[Any, str], Any], default: Any = NOTHING) -> Any:
    """Return a field with what it means, as the file and `quietbit node init --help` say it, and how it is read."""
    return field(default=default, metadata={"about": about, "read": read})


def _read(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Let every field be read by its rule, under its name; where None is the default, it may be given."""

    def reader(one: attrs.Attribute[Any]) -> Callable[[Any], Any]:
        read = (one.metadata or attrs.fields_dict(Policy)[one.name].metadata)["read"]
        return lambda value: (
            None if value is None and one.default is None else read(value, one.name)
        )

    return [one.evolve(converter=reader(one)) for one in fields]


def _rng(rules: Rules, number: int, client: int | None) -> RandomBits:
    """Return the operating system's randomness, unless there is a seed: then the simulator's."""
    from quietbit.kernel.client_rng import CLIENT_BITS, seeded_client_rng
    from quietbit.kernel.rng import secure_rng

    if rules.seed is None:
        return secure_rng()
    warnings.warn("The randomness is seeded: these releases protect nobody.", SeededRngWarning, 2)
    if client is None:
        raise InvalidParameter(
            "node config must have a partition-id for seeded randomness, and it is missing."
        )
    return seeded_client_rng(rules.seed)(
        number - 1, check_int(client, "partition-id", 0, 2**CLIENT_BITS - 1)
    )


@final
@frozen(kw_only=True, field_transformer=_read)
class Policy:
    """What an owner allows; `load` reads a file and `text` writes one."""

    epsilon: float = _rule("what all releases of this node together may ever cost", _real)
    delta: float = _rule("the delta of that epsilon", lambda value, _: check_delta(value))
    adjacency: Adjacency = _rule(  # noqa: RUF009
        "the neighbouring world: zero-out or replace-one", lambda value, _: Adjacency(value)
    )
    unit: Unit = _rule(  # noqa: RUF009
        "whose privacy this budget protects: the client, or any one sample (patient) of its data",
        lambda value, _: Unit(value),
        Unit.CLIENT,
    )
    data_set: str = _rule(
        "the data's name: releases of other named data sets do not count here", _name, ""
    )
    samples: int | None = _rule(
        "how many samples the data has: batches are drawn from exactly that number",
        partial(check_int, low=1),
        None,
    )
    largest_sampling_rate: float = _rule(
        "each sample is in a batch with no more than this probability",
        partial(check_real, at_most=1.0),
        1.0,
    )
    mechanisms: tuple[str, ...] = _rule("families that may be asked for", _words)
    evaluate: float = _rule(
        "what private answers to evaluations may cost, all together, of that epsilon; 0: none are given",
        _floor,
        0.0,
    )
    largest_dimension: int = _rule(
        "updates have no more parameters than this; a gatekeeper holds 8 bytes of memory for each",
        partial(check_int, low=1),
        DIMENSION,
    )
    largest_clip: float = _rule("updates are clipped to a ball no larger than this", _real)
    smallest_clip: float = _rule(
        "nor to one smaller than this, where a run moves its clip", _floor, 0.0
    )
    releases: int = _rule("how many releases there may be, in all", _count)
    releases_per_day: int = _rule("how many in any 24 hours", _count)
    refusals_per_day: int = _rule(
        "how many runs may be refused for this budget in any 24 hours; then all are refused",
        partial(check_int, low=1, high=MOST_REFUSALS),
        REFUSALS,
    )
    least_epsilon: float = _rule("a release never counts less than this pure epsilon", _floor, 0.0)
    runs: tuple[str, ...] = _rule(
        "numbers of the runs that are answered; * for all", _words, ("*",)
    )
    trust: tuple[Trust, ...] = _rule("local, secure-aggregation or both", _trusts, (Trust.LOCAL,))
    min_honest_clients: int | None = _rule(
        "the number of honest clients that every sum is priced at, whatever the run says",
        _clients,
        None,
    )
    local_epsilon: float | None = _rule(
        "for sums: the cap that holds even if every mask fails", _real, None
    )
    directory: str | None = _rule(
        "for sums: the list of members; sums are then secret from a server that lies", _path, None
    )
    operator: str | None = _rule(
        "the public key that the directory must be signed with, hexadecimal", _key, None
    )
    own_key: str | None = _rule("this node's private key, from quietbit node keys", _path, None)
    most_colluders: int = _rule(
        "for sums: members that may work for the server",
        partial(check_int, low=0, high=MOST_CLIENTS),
        0,
    )
    largest_exposure: float = _rule(
        "for sums: the largest chance, per sum, that they unmask it",
        partial(_floor, at_most=2.0**-20),
        RISK,
    )
    min_neighbours: int = _rule(
        "for sums: with how many others each client deals, if not with all", _clients, 10
    )
    metrics: tuple[str, ...] = _rule(
        "numbers of evaluations that leave the node WITHOUT any privacy", _words, ()
    )
    answer_seconds: float = _rule(
        "every answer leaves so long after its request, whatever the app does; 0: when ready",
        _floor,
        60.0,
    )
    seed: int | None = _rule(
        "randomness that anybody can repeat, for tests: protects nobody",
        partial(check_int, low=0),
        None,
    )
    models: str | None = _rule(
        "a folder, an absolute path: models of runs are kept there, so that rounds can be replayed",
        _path,
        None,
    )
    ledger: str = _rule("the ledger, an absolute path", _path)
    counter: str = _rule("the ledger's counter, an absolute path; best on another disk", _path)
    rng = _rng

    def __attrs_post_init__(self) -> None:
        """Refuse rules that contradict each other, and sums without their two rules."""
        rule = f"at most {self.largest_clip!r}, the largest"
        require(self.smallest_clip <= self.largest_clip, "smallest_clip", self.smallest_clip, rule)
        require(self.mechanisms, "mechanisms", [], "one name at least")
        rule = "below every cap on epsilon, which it is a part of"
        require(
            all(self.evaluate < cap.epsilon for cap in self.caps), "evaluate", self.evaluate, rule
        )
        if self.unit is Unit.SAMPLE and not self.data_set:
            raise InvalidParameter.of(
                "data_set", "given where samples are protected: whose account this is"
            )
        if self.samples is not None:
            rule = "left out unless the unit is sample"
            require(self.unit is Unit.SAMPLE, "samples", self.samples, rule)
        sums = ("min_honest_clients", "local_epsilon")
        server = ("directory", "operator", "own_key")
        given = [name for name in (*sums, *server) if getattr(self, name) is not None]
        for name in (*sums, *server):
            if Trust.SECURE_AGGREGATION not in self.trust:
                rule = "left out unless trust names secure-aggregation"
                require(name not in given, name, getattr(self, name), rule)
            elif name in sums and name not in given:
                raise InvalidParameter.of(name, "given beside secure-aggregation trust")
            elif name not in given and set(given) & set(server):
                rule = "given, as are directory, operator and own key of sums that are secret from a server that lies"
                raise InvalidParameter.of(name, rule)

    @cached_property
    def caps(self) -> tuple[Target, ...]:
        """The cap on everything; where sums are allowed, the one that they are priced under, and the local one."""
        local = Target(
            self.local_epsilon or self.epsilon, self.delta, self.adjacency, unit=self.unit
        )
        if self.local_epsilon is None:
            return (local,)
        return attrs.evolve(local, epsilon=self.epsilon, trust=Trust.SECURE_AGGREGATION), local

    @cached_property
    def mark(self) -> str:
        """A short digest of all rules, by which refusals under an earlier policy are told apart."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    @property
    def families(self) -> tuple[str, ...]:
        """The families that a description may name."""
        return self.mechanisms

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file; one that others than its owner may write is refused."""
        place = Path(path).expanduser()
        try:
            if not place.is_absolute():
                raise InvalidParameter.of("path of the policy", "an absolute path", str(path))
            status = os.stat(place)
            return _loaded(
                place, (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            )
        except OSError as error:
            raise PolicyError(f"Cannot read the policy {place}: {error.strerror}.") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PolicyError(f"The policy {place} is not TOML: {error}.") from error
        except QuietbitError as error:
            raise PolicyError(f"In {place}: {error}") from error

    def text(self) -> str:
        """Return the text of the policy file, with a comment on each key."""
        lines = [
            "# What this node releases, at most and ever. Only its owner changes this file; a run cannot."
        ]
        sums = ("most_colluders", "largest_exposure", "min_neighbours")
        for one in attrs.fields(Policy):
            value = getattr(self, one.name)
            if value is not None and (self.min_honest_clients is not None or one.name not in sums):
                # JSON of numbers, words and lists of words is TOML, where DEL is escaped.
                said = json.dumps(
                    value, ensure_ascii=False, default=lambda word: word.value
                ).replace("\x7f", "\\u007f")
                lines.append(f"{KEYS[one.name]} = {said}  # {one.metadata['about']}")
        return "\n".join([*lines, ""])

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """Return the node's own least number, for sums of at least that many; the run's is ignored."""
        if trust not in self.trust:
            raise NotAllowed(f"The request is for {trust.value} trust.", rule="trust")
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        least = self.min_honest_clients or MOST_CLIENTS
        if threshold is None or not threshold >= least:
            raise NotAllowed(
                f"The sum has the threshold {threshold}, below {least}.", rule="min-honest-clients"
            )
        return least

    def check_request(self, run: str, dimension: int) -> None:
        """Refuse a run that is not listed, and more parameters than the owner allows."""
        if "*" not in self.runs and run not in self.runs:
            raise NotAllowed(f"The policy does not list run {run}.", rule="runs")
        if not dimension <= self.largest_dimension:
            raise NotAllowed(
                f"{dimension} parameters exceed {self.largest_dimension}.", rule="largest-dimension"
            )

    def check(self, family: str, clip: float, rate: float = 1.0) -> None:
        """Refuse another family, a ball that is too large or too small, and batches that are too large."""
        if family in ANSWERING:
            if not self.evaluate > 0:
                raise NotAllowed("evaluate is 0.", rule="evaluate")
            return
        if not rate <= self.largest_sampling_rate:
            raise NotAllowed(f"The sampling rate is {rate:g}.", rule="largest-sampling-rate")
        if family not in self.mechanisms:
            raise NotAllowed(f"The mechanism is {family[:40]!r}.", rule="mechanisms")
        if not clip <= self.largest_clip:
            raise NotAllowed(f"The clip is {clip:g}.", rule="largest-clip")
        if not clip >= self.smallest_clip:
            raise NotAllowed(f"The clip is {clip:g}.", rule="smallest-clip")

    def check_counts(self, releases: int, today: int) -> None:
        """Refuse a release beyond the number in all, or of any 24 hours."""
        if not releases <= self.releases:
            raise BudgetSpent(f"All {self.releases} releases of the policy are made.")
        if not today <= self.releases_per_day:
            raise BudgetSpent(
                f"The {self.releases_per_day} releases of the last 24 hours are made."
            )

    def identity(self, client: int | None) -> Identity | None:
        """Load the key that the policy names."""
        if self.own_key is None:
            return None
        try:
            return Identity.load(self.own_key)
        except QuietbitError as error:
            raise PolicyError(str(error)) from error

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Of the directory that the operator has signed."""
        if self.directory is None:
            raise NotAllowed("The policy names no directory of members.", rule="own-key")
        try:
            directory = Directory.load(self.directory, bytes.fromhex(self.operator or ""))
        except QuietbitError as error:
            raise PolicyError(str(error)) from error
        return directory.keys(places)

    def check_sum(self, plan: SumPlan) -> None:
        """Refuse a server that must be believed where there is a directory, and sums that colluders could unmask."""
        honest = min(self.min_honest_clients or MOST_CLIENTS, plan.clients)
        if self.directory is not None and not plan.active:
            raise NotAllowed(
                "The sum trusts the server, and the policy names a directory.", rule="directory"
            )
        if plan.neighbours is not None and not plan.neighbours >= self.min_neighbours:
            raise NotAllowed(f"The sum has {plan.neighbours} neighbours.", rule="min-neighbours")
        if not plan.exposure_upper(self.most_colluders, honest) <= self.largest_exposure:
            raise NotAllowed(
                f"{self.most_colluders} colluders could unmask the sum.", rule="largest-exposure"
            )


KEYS = {one.name: one.name.replace("_", "-") for one in attrs.fields(Policy)}


@final
@frozen(kw_only=True, field_transformer=_read)
class Simulation:
    """The rules of nodes that belong to nobody: whatever the run asks, within the run's own budget.

    With a ``seed``, randomness is that of the engine-free simulator. ``metrics`` leave as they are.
    Sums are priced at ``min_honest_clients``, the run's number unless given.
    """

    seed: int | None = None
    metrics: tuple[str, ...] = ()
    min_honest_clients: int | None = None
    trust: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.SECURE_AGGREGATION)
    caps: ClassVar[tuple[Target, ...]] = ()  # none but the run's
    evaluate: ClassVar[float] = 0.0  # out of an owner's caps
    least_epsilon: ClassVar[float] = 0.0
    answer_seconds: ClassVar[float] = 0.0
    data_set: ClassVar[str] = ""
    models: ClassVar[str | None] = None
    refusals_per_day: ClassVar[int | None] = None  # as many as come
    mark: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...] | None] = None  # any
    samples: ClassVar[int | None] = None
    rng = _rng

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """Return the run's number, or the simulation's own."""
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        return check_int(self.min_honest_clients or honest, "honest clients of the sum", 2)

    def check_request(self, run: str, dimension: int) -> None:
        """Every run, of every size."""

    def check(self, family: str, clip: float, rate: float = 1.0) -> None:
        """Everything may be asked."""

    def check_counts(self, releases: int, today: int) -> None:
        """As often as the run's budget allows."""

    def identity(self, client: int | None) -> Identity | None:
        """One that anybody can make, of this number among the simulated nodes (its ``partition-id``)."""
        if client is None:
            raise InvalidParameter(
                "node config must have a partition-id for a simulated identity, and it is missing."
            )
        return _simulated(client)

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the public keys of simulated nodes, which are members by their numbers."""
        return tuple(_simulated(place).public for place in places)

    def check_sum(self, plan: SumPlan) -> None:
        """Whatever the run asks."""


Rules: TypeAlias = Policy | Simulation


def init(
    path: str | os.PathLike[str],
    *,
    epsilon: float,
    adjacency: Adjacency | str,
    largest_clip: float,
    releases: int,
    releases_per_day: int,
    delta: float = 1e-5,
    mechanisms: tuple[str, ...] = USUAL,
    ledger: str | os.PathLike[str] | None = None,
    counter: str | os.PathLike[str] | None = None,
    **rules: Any,
) -> Policy:
    """Write a node's policy and begin its ledger; nothing that exists is overwritten.

    ``path`` is the policy's file, and the rest are keys of a `Policy`. The ledger and its counter
    lie beside it unless given; the counter is best on another disk. Where ``min_honest_clients`` is
    among ``rules``, sums are allowed too.
    """
    from quietbit.mechanism.registry import families

    place = Path(path).expanduser().absolute()
    require(not os.path.lexists(place), "policy", str(path), "a file that does not exist yet")
    if rules.get("min_honest_clients") is not None:
        rules = {"trust": (Trust.LOCAL, Trust.SECURE_AGGREGATION)} | rules
    for name in rules:
        check_known(name, KEYS, "rule of the policy")
    for name in mechanisms:
        check_known(name, (*families(), SCOUT), "mechanisms")
    policy = Policy(
        epsilon=epsilon,
        adjacency=Adjacency(adjacency),
        largest_clip=largest_clip,
        releases=releases,
        delta=delta,
        releases_per_day=releases_per_day,
        mechanisms=mechanisms,
        ledger=str(ledger or place.parent / "ledger"),
        counter=str(counter or place.parent / "counter"),
        **{"least_epsilon": LEAST_EPSILON, **rules},
    )
    ledger_file = FileLedger.create(policy.ledger, policy.counter)
    try:
        write_whole(
            place, lambda file: file.write(policy.text().encode()), make_folder=False, mode=0o600
        )
    except BaseException:
        ledger_file.remove()
        raise
    return policy


def simulated_directory(nodes: int) -> Directory:
    """Return a directory of simulated nodes, partition-ids from 0; anybody can sign for them, so it protects nobody."""
    return Directory.of(
        (f"simulated node {place}", _simulated(place).public) for place in range(nodes)
    )


@lru_cache(maxsize=1 << 14)
def _simulated(place: int) -> Identity:
    return Identity(hashlib.sha256(b"quietbit/simulation/identity/%d" % place).digest())


@lru_cache(maxsize=8)
def _loaded(place: Path, version: tuple[int, ...]) -> Policy:
    """Read a file, once in each of its versions; an unknown key is refused, and a missing one."""
    table = tomllib.loads(read_file(place, MOST_BYTES, "policy", OTHERS_WRITE).decode("utf-8"))
    for key in table:
        check_known(key, (*KEYS.values(), *RETIRED), "key of the policy")
    try:
        for one in attrs.fields(Policy):
            if one.default is NOTHING and KEYS[one.name] not in table:
                raise InvalidParameter.of(one.name, "given")
        return Policy(**{name: table[key] for name, key in KEYS.items() if key in table})
    except InvalidParameter as error:
        raise (error.renamed(KEYS[error.name]) if error.name in KEYS else error) from None
