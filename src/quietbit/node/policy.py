"""What a node's owner allows: a file that `init` writes once and that no run can change.

Idea     a run sends requests; the policy says which may be answered. It caps everything that the
         node ever releases, for all runs and servers together, and lists what a request may ask
         for. Without a policy, nothing is released. A simulation has no owner: its app names other
         rules (`Simulation`).
Symbols  the keys of the file are the fields of `Policy`, with - for _; unknown keys are refused.
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
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import attrs
from attrs import NOTHING, field, frozen

from quietbit._files import OTHERS_WRITE, write_whole
from quietbit.errors import (
    InvalidParameter,
    QuietbitError,
    check_current,
    check_int,
    check_known,
    check_real,
    require,
)
from quietbit.node.ledger import RESPONSE, SCOUT, FileLedger
from quietbit.node.refusal import BudgetSpent, NotAllowed
from quietbit.secagg.identity import PUBLIC_SIZE, Identity, MemberList, read_file
from quietbit.target import MOST_CLIENTS, Adjacency, Target, Trust, Unit, check_delta

if TYPE_CHECKING:  # `quietbit --help` reads the rules: what only a release needs is imported later
    from quietbit.kernel.rng import RandomBits
    from quietbit.secagg.plan import SumPlan

__all__ = [
    "Policy",
    "PolicyError",
    "Rules",
    "SeededRngWarning",
    "Simulation",
    "init",
    "simulated_members",
]

MOST_RELEASES = 10**6
MOST_BYTES = 12 * 2**10  # of a policy: whatever is in it, it is read within a second
MOST_LETTERS = 600  # of an error's sentence, which may quote the file
ALL_WITH_ALL = "gone: all clients of a sum exchange masks with all"
# Keys of earlier versions, and what became of them.
RENAMED = {
    "answer-seconds": "now response-seconds",
    "largest-exposure": ALL_WITH_ALL,
    "min-neighbours": ALL_WITH_ALL,
}
RETIRED = ("pricing-seconds",)  # keys of earlier versions, which are ignored
USUAL = ("imvu", "vmvu", SCOUT)  # families that `init` allows
DIMENSION = 2**25  # the default largest-dimension: 256 MiB in a gatekeeper
REFUSALS = 10  # the default refusals-per-day
MOST_REFUSALS = 1000
LEAST_EPSILON = 0.001  # least-epsilon in policies that `init` writes


class PolicyError(QuietbitError, ValueError):
    """A policy that cannot be read or is not valid; the sentence is for the owner only."""


class SeededRngWarning(UserWarning):
    """Releases are made with seeded randomness, which anyone can repeat."""


_real = check_real
_floor = partial(check_real, at_least=0.0)
_count = partial(check_int, low=1, high=MOST_RELEASES)
_clients = partial(check_int, low=2, high=MOST_CLIENTS)


def _words(value: Any, name: str) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple)
    are_names = is_list and all(isinstance(word, str) and word for word in value)
    require(are_names, name, value, "a list of names")
    return tuple(value)


def _name(value: Any, name: str) -> str:
    is_name = isinstance(value, str) and len(value) <= 200
    require(is_name, name, value, "a name of at most 200 characters")
    return str(value)


def _trusts(value: Any, name: str) -> tuple[Trust, ...]:
    rule = "a list of local, secure-aggregation or both"
    require(isinstance(value, list | tuple) and len(value) > 0, name, value, rule)
    words = [getattr(word, "value", word) for word in value]
    known = ("local", "secure-aggregation")
    require(all(word in known for word in words), name, words, rule)
    return tuple(Trust(word) for word in words)


def _path(value: Any, name: str) -> str:
    is_absolute = isinstance(value, str | os.PathLike) and Path(value).expanduser().is_absolute()
    require(is_absolute, name, value, "an absolute path")
    return str(value)


def _key(value: Any, name: str) -> str:
    digits = 2 * PUBLIC_SIZE
    is_key = isinstance(value, str) and re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", value)
    require(is_key, name, value, f"a public key of {digits} hexadecimal digits")
    return str(value)


def _rule(about: str, read: Callable[[Any, str], Any], default: Any = NOTHING) -> Any:
    """Return a field with its meaning, for the file and `--help`, and its reader."""
    return field(default=default, metadata={"about": about, "read": read})


def _read(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Convert every field by the reader of its rule; None is accepted where it is the default."""

    def converter(rule: attrs.Attribute[Any]) -> Callable[[Any], Any]:
        metadata = rule.metadata or attrs.fields_dict(Policy)[rule.name].metadata
        read = metadata["read"]

        def convert(value: Any) -> Any:
            if value is None and rule.default is None:
                return None
            return read(value, rule.name)

        return convert

    return [rule.evolve(converter=converter(rule)) for rule in fields]


def _rng(rules: Rules, number: int, client: int | None) -> RandomBits:
    """Return the operating system's randomness, or the simulator's where the rules have a seed."""
    from quietbit.kernel.client_rng import CLIENT_BITS, seeded_client_rng
    from quietbit.kernel.rng import secure_rng

    if rules.seed is None:
        return secure_rng()
    warnings.warn("The randomness is seeded: these releases protect nobody.", SeededRngWarning, 2)
    if client is None:
        raise InvalidParameter.of("partition-id", "in the node config for seeded randomness", None)
    return seeded_client_rng(rules.seed)(
        number - 1, check_int(client, "partition-id", 0, 2**CLIENT_BITS - 1)
    )


@final
@frozen(kw_only=True, field_transformer=_read)
class Policy:
    """What an owner allows; `load` reads it from a file, and `text` is that file's content."""

    epsilon: float = _rule("the largest epsilon of all releases of this node together, ever", _real)
    delta: float = _rule("the delta of that epsilon", lambda value, _: check_delta(value))
    adjacency: Adjacency = _rule(  # noqa: RUF009
        "what neighbours differ in: an update becomes zero (zero-out) or any other (replace-one)",
        lambda value, _: Adjacency(value),
    )
    unit: Unit = _rule(  # noqa: RUF009
        "whose privacy this budget protects: the client, or any one sample (patient) of its data",
        lambda value, _: Unit(value),
        Unit.CLIENT,
    )
    data_set: str = _rule(
        "the name of the data: releases of other named data sets do not count here", _name, ""
    )
    samples: int | None = _rule(
        "the number of samples in the data: batches are drawn from exactly that many",
        partial(check_int, low=1),
        None,
    )
    largest_sampling_rate: float = _rule(
        "the largest probability with which a sample is in a batch",
        partial(check_real, at_most=1.0),
        1.0,
    )
    mechanisms: tuple[str, ...] = _rule("families of mechanisms that a run may request", _words)
    evaluate: float = _rule(
        "the part of that epsilon for private answers to evaluations, all together; 0: no answers",
        _floor,
        0.0,
    )
    largest_dimension: int = _rule(
        "the most parameters of an update; a gatekeeper holds 8 bytes of memory for each",
        partial(check_int, low=1),
        DIMENSION,
    )
    largest_clip: float = _rule("the largest norm that updates may be clipped to", _real)
    smallest_clip: float = _rule(
        "the smallest norm that they may be clipped to, where a run moves its clip", _floor, 0.0
    )
    releases: int = _rule("the most releases, ever", _count)
    releases_per_day: int = _rule("the most releases in any 24 hours", _count)
    refusals_per_day: int = _rule(
        "the most runs that this budget may refuse in any 24 hours; then all are refused",
        partial(check_int, low=1, high=MOST_REFUSALS),
        REFUSALS,
    )
    least_epsilon: float = _rule("the least pure epsilon that a release counts", _floor, 0.0)
    runs: tuple[str, ...] = _rule(
        "numbers of the runs that are answered; * for all", _words, ("*",)
    )
    trust: tuple[Trust, ...] = _rule("local, secure-aggregation or both", _trusts, (Trust.LOCAL,))
    min_honest_clients: int | None = _rule(
        "for sums: the number of honest clients that their cost assumes, whatever the run says",
        _clients,
        None,
    )
    local_epsilon: float | None = _rule(
        "for sums: the cap on epsilon that holds even if every mask fails", _real, None
    )
    directory: str | None = _rule(
        "for sums: the signed list of members; sums are then secret from a lying server, too",
        _path,
        None,
    )
    operator: str | None = _rule(
        "for sums: the public key that the directory must be signed with, hexadecimal", _key, None
    )
    own_key: str | None = _rule(
        "for sums: this node's private key, from quietbit node keys", _path, None
    )
    most_colluders: int = _rule(
        "for sums: the most members that may collude with the server",
        partial(check_int, low=0, high=MOST_CLIENTS),
        0,
    )
    metrics: tuple[str, ...] = _rule(
        "metrics of evaluations that leave the node WITHOUT any privacy", _words, ()
    )
    response_seconds: float = _rule(
        "seconds from a request to its answer, whatever the app does; 0: when it is ready",
        _floor,
        60.0,
    )
    seed: int | None = _rule(
        "the seed of randomness that anybody can repeat, for tests: protects nobody",
        partial(check_int, low=0),
        None,
    )
    models: str | None = _rule(
        "a folder for the models of runs, an absolute path: needed to replay rounds",
        _path,
        None,
    )
    ledger: str = _rule("the ledger's file, an absolute path", _path)
    counter: str = _rule(
        "the file of the ledger's counter, an absolute path, best on another disk", _path
    )
    rng = _rng

    def __attrs_post_init__(self) -> None:
        """Refuse rules that contradict each other, and incomplete rules for sums."""
        rule = f"at most largest-clip, {self.largest_clip!r}"
        require(self.smallest_clip <= self.largest_clip, "smallest_clip", self.smallest_clip, rule)
        require(self.mechanisms, "mechanisms", [], "at least one name")
        rule = "below epsilon and local-epsilon, of which it is a part"
        is_part = all(self.evaluate < cap.epsilon for cap in self.caps)
        require(is_part, "evaluate", self.evaluate, rule)
        if self.unit is Unit.SAMPLE and not self.data_set:
            remedy = "name the data whose samples this budget protects"
            raise InvalidParameter.of("data_set", "given where the unit is sample", "", remedy)
        if self.samples is not None:
            rule = "left out unless the unit is sample"
            require(self.unit is Unit.SAMPLE, "samples", self.samples, rule)
        self._check_sum_rules()

    def _check_sum_rules(self) -> None:
        """Refuse rules for sums where none are allowed, and missing ones where they are."""
        sums = ("min_honest_clients", "local_epsilon")
        active = ("directory", "operator", "own_key")
        given = [name for name in (*sums, *active) if getattr(self, name) is not None]
        for name in (*sums, *active):
            if Trust.SECURE_AGGREGATION not in self.trust:
                remedy = "allow masked sums with min-honest-clients and local-epsilon"
                if "min_honest_clients" in given:
                    remedy = "add secure-aggregation to trust"
                rule = "left out unless masked sums are allowed"
                require(name not in given, name, getattr(self, name), rule, remedy)
            elif name in sums and name not in given:
                raise InvalidParameter.of(name, "given where masked sums are allowed")
            elif name not in given and set(given) & set(active):
                rule = "given: directory, operator and own-key need each other"
                raise InvalidParameter.of(name, rule)

    @cached_property
    def caps(self) -> tuple[Target, ...]:
        """The caps on all releases: that on sums, if they are allowed, and the local one."""
        local = Target(
            self.local_epsilon or self.epsilon, self.delta, self.adjacency, unit=self.unit
        )
        if self.local_epsilon is None:
            return (local,)
        return attrs.evolve(local, epsilon=self.epsilon, trust=Trust.SECURE_AGGREGATION), local

    @cached_property
    def mark(self) -> str:
        """A short digest of all rules, which tells refusals under an earlier policy apart."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file; refuse one that users other than its owner may write."""
        place = Path(path).expanduser()
        try:
            if not place.is_absolute():
                raise InvalidParameter.of("policy", "an absolute path", str(path))
            status = os.stat(place)
            version = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            return _loaded(place, version)
        except OSError as error:
            raise PolicyError(f"Cannot read the policy {place}: {error.strerror}.") from error
        except QuietbitError as error:
            raise PolicyError(f"In {place}: {shorten(str(error), MOST_LETTERS)}") from error
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"The policy {place} is not TOML: {error}.") from error

    def text(self) -> str:
        """Return the text of the policy file, with a comment on each key."""
        lines = [
            "# The most that this node ever releases. Its owner may edit this file; a run cannot."
        ]
        for rule in attrs.fields(Policy):
            value = getattr(self, rule.name)
            if value is None or (rule.name == "most_colluders" and self.min_honest_clients is None):
                continue
            # JSON of numbers, words and lists of words is TOML once DEL is escaped.
            text = json.dumps(value, ensure_ascii=False, default=lambda word: word.value)
            text = text.replace("\x7f", "\\u007f")
            lines.append(f"{KEYS[rule.name]} = {text}  # {rule.metadata['about']}")
        return "\n".join([*lines, ""])

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """Return the number of honest clients for the cost: the policy's, and 0 for local trust."""
        if trust not in self.trust:
            raise NotAllowed(f"The request is for {trust.value} trust.", rule="trust")
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        least = self.min_honest_clients or MOST_CLIENTS
        if threshold is None or not threshold >= least:
            raise NotAllowed(
                f"The threshold of the sum is {threshold}, below {least}.",
                rule="min-honest-clients",
            )
        return least

    def check_request(self, run: str, dimension: int) -> None:
        """Refuse a run that the policy does not list, and too many parameters."""
        if "*" not in self.runs and run not in self.runs:
            raise NotAllowed(f"The policy does not list run {run}.", rule="runs")
        if not dimension <= self.largest_dimension:
            raise NotAllowed(
                f"{dimension} parameters exceed {self.largest_dimension}.", rule="largest-dimension"
            )

    def check(self, family: str, clip: float, rate: float = 1.0) -> None:
        """Refuse a family, a clip or a sampling rate that the policy does not allow."""
        if family == RESPONSE:
            if not self.evaluate > 0:
                raise NotAllowed("The policy has evaluate = 0.", rule="evaluate")
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
        """Refuse a release beyond the most in all, or in the last 24 hours."""
        if not releases <= self.releases:
            raise BudgetSpent(f"All {self.releases} releases that the policy allows are made.")
        if not today <= self.releases_per_day:
            raise BudgetSpent(
                f"All {self.releases_per_day} releases that the policy allows in 24 hours are made."
            )

    def identity(self, client: int | None) -> Identity | None:
        """Return the identity in the file that own-key names, if any."""
        if self.own_key is None:
            return None
        try:
            return Identity.load(self.own_key)
        except QuietbitError as error:
            raise PolicyError(str(error)) from error

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the public keys at these places of the operator's directory."""
        if self.directory is None:
            raise NotAllowed("The policy names no directory.", rule="own-key")
        try:
            directory = MemberList.load(self.directory, bytes.fromhex(self.operator or ""))
        except QuietbitError as error:
            raise PolicyError(str(error)) from error
        return directory.keys(places)

    def check_sum(self, plan: SumPlan) -> None:
        """Refuse sums that trust the server despite a directory, and sums that are too exposed."""
        honest = min(self.min_honest_clients or MOST_CLIENTS, plan.clients)
        if self.directory is not None and not plan.active:
            raise NotAllowed(
                "The sum needs an honest-but-curious server, and the policy names a directory.",
                rule="directory",
            )
        if not plan.protects(self.most_colluders, honest):
            raise NotAllowed(
                f"{self.most_colluders} colluders could unmask the sum.", rule="most-colluders"
            )


KEYS = {rule.name: rule.name.replace("_", "-") for rule in attrs.fields(Policy)}


@final
@frozen(kw_only=True, field_transformer=_read)
class Simulation:
    """The rules of simulated nodes: every request is allowed, within the run's own budget.

    With a ``seed``, randomness is that of the simulator without an engine. ``metrics`` leave as
    they are. The cost of sums assumes ``min_honest_clients``, the run's number unless given.
    """

    seed: int | None = None
    metrics: tuple[str, ...] = ()
    min_honest_clients: int | None = None
    trust: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.SECURE_AGGREGATION)
    caps: ClassVar[tuple[Target, ...]] = ()  # the run's cap is the only one
    evaluate: ClassVar[float] = 0.0  # nothing is set aside
    least_epsilon: ClassVar[float] = 0.0
    response_seconds: ClassVar[float] = 0.0
    data_set: ClassVar[str] = ""
    models: ClassVar[str | None] = None
    refusals_per_day: ClassVar[int | None] = None  # not limited
    mark: ClassVar[str] = ""
    mechanisms: ClassVar[tuple[str, ...] | None] = None  # all are allowed
    samples: ClassVar[int | None] = None
    rng = _rng

    def honest_for(self, trust: Trust, threshold: int | None, honest: int | None) -> int:
        """Return the number of honest clients for the cost; 0 for local trust."""
        if trust is not Trust.SECURE_AGGREGATION:
            return 0
        return check_int(self.min_honest_clients or honest, "honest clients of the sum", 2)

    def check_request(self, run: str, dimension: int) -> None:
        """Allow every run, and any number of parameters."""

    def check(self, family: str, clip: float, rate: float = 1.0) -> None:
        """Allow every mechanism."""

    def check_counts(self, releases: int, today: int) -> None:
        """Allow any number of releases."""

    def identity(self, client: int | None) -> Identity | None:
        """Return an identity that anybody can compute, for a simulated node's ``partition-id``."""
        if client is None:
            rule = "in the node config for a simulated identity"
            raise InvalidParameter.of("partition-id", rule, None)
        return _simulated(client)

    def members(self, places: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the public keys of the simulated nodes of these numbers."""
        return tuple(_simulated(place).public for place in places)

    def check_sum(self, plan: SumPlan) -> None:
        """Allow every sum."""


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
    """Write a node's policy and make its ledger; nothing that exists is overwritten.

    ``path`` is the policy's file; the other arguments are fields of `Policy`. The ledger and its
    counter are beside it unless given; the counter is best on another disk. With
    ``min_honest_clients`` among ``rules``, masked sums are allowed, too.
    """
    from quietbit.mechanism.registry import families

    place = Path(path).expanduser().absolute()
    require(not os.path.lexists(place), "policy", str(path), "a path where no file exists yet")
    if rules.get("min_honest_clients") is not None:
        rules = {"trust": (Trust.LOCAL, Trust.SECURE_AGGREGATION)} | rules
    for name in rules:
        check_current(name.replace("_", "-"), RENAMED, name)
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


def simulated_members(nodes: int) -> MemberList:
    """Return simulated nodes as members; anybody can compute their keys: protects nobody."""
    return MemberList.of(
        (f"simulated node {place}", _simulated(place).public) for place in range(nodes)
    )


@lru_cache(maxsize=1 << 14)
def _simulated(place: int) -> Identity:
    return Identity(hashlib.sha256(b"quietbit/simulation/identity/%d" % place).digest())


@lru_cache(maxsize=8)
def _loaded(place: Path, version: tuple[int, ...]) -> Policy:
    """Read a policy file, once per version of it; refuse unknown and missing keys."""
    text = read_file(place, MOST_BYTES, "policy", OTHERS_WRITE).decode("utf-8")
    table = tomllib.loads(text)
    for key in table:
        check_current(key, RENAMED)
        check_known(key, (*KEYS.values(), *RETIRED), "key of the policy")
    try:
        for rule in attrs.fields(Policy):
            if rule.default is NOTHING and KEYS[rule.name] not in table:
                raise InvalidParameter.of(rule.name, "given")
        return Policy(**{name: table[key] for name, key in KEYS.items() if key in table})
    except InvalidParameter as error:
        if error.name in KEYS:
            raise error.renamed(KEYS[error.name]) from None
        raise
