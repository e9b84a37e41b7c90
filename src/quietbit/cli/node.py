"""``quietbit node``: the policy, ledger, gatekeeper and keys of one device, for its owner."""

from __future__ import annotations

import inspect
import os
import signal
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import NOTHING, Attribute, asdict, fields

from quietbit._files import write_text
from quietbit.cli.console import JsonOption, Row, record, show_json
from quietbit.cli.options import option, takes
from quietbit.errors import QuietbitError, check_int, check_known, require, require_module
from quietbit.node.policy import Policy
from quietbit.secagg.identity import PUBLIC_SIZE

__all__ = ["node"]

node = typer.Typer(
    name="node",
    help="Decide what this device releases: its policy, its ledger, and a gatekeeper for both.",
    epilog="Start with: quietbit node init --help",
    no_args_is_help=True,
)


def _file(name: str, about: str) -> Any:
    """Return an argument that names a file, made absolute."""
    return typer.Argument(metavar=name, help=about, show_default=False, parser=_absolute)


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()


_absolute.__name__ = "file"  # what help calls the type


PolicyArgument = Annotated[Path, _file("POLICY", "The policy file.")]
SKIPPED = ("trust", "seed")  # rules without an option
LEVELS = ("debug", "info", "warning", "error")
USUAL = {
    "delta": 1e-5,
    "mechanisms": "imvu,vmvu,scout",
    "runs": "*",
    "metrics": "",
    "least_epsilon": 0.001,
    "ledger": None,
    "counter": None,
}


def _rule_options() -> list[inspect.Parameter]:
    """Return an option for every rule of a policy, required ones first."""
    rules: list[Attribute[Any]] = [rule for rule in fields(Policy) if rule.name not in SKIPPED]
    required = [rule for rule in rules if _default(rule) is ...]
    optional = [rule for rule in rules if _default(rule) is not ...]
    return [_rule_option(rule) for rule in required + optional]


def _default(rule: Attribute[Any]) -> Any:
    """Return the default of a rule's option; ``...`` where the rule must be given."""
    default = rule.default
    if rule.name in USUAL:
        default = USUAL[rule.name]
    if default is NOTHING:
        return ...
    if isinstance(default, Enum):
        return default.value
    return default


def _rule_option(rule: Attribute[Any]) -> inspect.Parameter:
    """Return the option of a rule, described as in the policy's file."""
    type_name = str(rule.type)
    kind: type = str
    if "int" in type_name:
        kind = int
    elif "float" in type_name:
        kind = float
    about: str = rule.metadata["about"]
    if "tuple" in type_name:
        about += " (separated by commas)"
    return option(rule.name, kind, f"{about[0].upper()}{about[1:]}.", _default(rule))


@node.command("init")
@takes(*_rule_options())
def _init(policy: PolicyArgument, json: JsonOption = False, **rules: Any) -> None:
    """Write this node's policy and make its ledger, once.

    A run can never get more than the policy allows. The ledger notes every release before it is
    made; a second file, the counter, reveals a ledger that was replaced by an older copy. Nothing
    that exists is overwritten. With --min-honest-clients and --local-epsilon, masked sums are
    allowed, too.

    Example: quietbit node init /var/lib/quietbit/policy.toml --epsilon 8 --adjacency zero-out
    --largest-clip 1 --releases 200 --releases-per-day 20
    """
    from quietbit.node.policy import init

    for name in ("mechanisms", "runs", "metrics"):
        rules[name] = tuple(word.strip() for word in rules[name].split(",") if word.strip())
    for name in ("directory", "own_key"):
        if rules[name] is not None:
            rules[name] = str(_absolute(rules[name]))
    written = init(policy, **rules)
    rows = [
        Row("policy", "policy", str(policy)),
        Row("ledger", "ledger", written.ledger),
        Row("counter", "counter", written.counter),
        Row("next", "next", f'name it in the node config: quietbit.policy="{policy}"'),
    ]
    record("This node's policy and ledger are made", rows, json)


@node.command("import")
def _import(
    policy: PolicyArgument,
    old_ledger: Annotated[Path, _file("LEDGER", "The ledger that quietbit 0.1 wrote.")],
    old_counter: Annotated[Path, _file("COUNTER", "Its counter.")],
    json: JsonOption = False,
) -> None:
    """Make this policy's ledger of the lines of one that quietbit 0.1 wrote, once.

    Move the old ledger and its counter away first. Every release counts as before; the old files
    are not changed, and can be deleted afterwards.

    Example: quietbit node import /var/lib/quietbit/policy.toml /var/lib/quietbit/ledger.old
    /var/lib/quietbit/counter.old
    """
    from quietbit.node.old_ledger import import_ledger

    rules = Policy.load(policy)
    state = import_ledger(rules.ledger, rules.counter, old_ledger, old_counter).read()
    rows = [
        Row("ledger", "ledger", rules.ledger),
        Row("counter", "counter", rules.counter),
        Row("lines", "lines", state.count),
        Row("releases", "releases", state.releases),
    ]
    record("The ledger is imported", rows, json)


@node.command("check")
def _check(
    policy: Annotated[Path, _file("FILE", "The policy, or NVFlare's privacy.json.")],
    json: JsonOption = False,
) -> int:
    """Check the policy, the ledger and its counter; the exit code is 1 if anything is wrong.

    For NVFlare's privacy.json, list what would leave the site in each scope. The exit code is 1 if
    any of it has no privacy cost, and 2 if the file cannot be read.

    Example: quietbit node check /var/lib/quietbit/policy.toml
    """
    if policy.suffix == ".json":
        return _check_privacy_file(policy, json)
    from quietbit.node.ledger import FileLedger, LedgerError
    from quietbit.node.policy import PolicyError

    problem = ""
    lines = 0
    try:
        rules = Policy.load(policy)
        lines = FileLedger(rules.ledger, rules.counter).read().count
    except (LedgerError, PolicyError) as error:
        problem = str(error)
    rows = [
        Row("fine", "fine", not problem),
        Row("lines", "lines of the ledger", lines),
        Row("problem", "problem", problem, problem or "none"),
    ]
    record("This node's policy and ledger", rows, json)
    return 1 if problem else 0


def _check_privacy_file(path: Path, as_json: bool) -> int:
    require_module("nvflare", "nvflare")
    from quietbit.nvflare.check import check_privacy

    report = check_privacy(path)
    if as_json:
        show_json({"unpriced": report.unpriced, **asdict(report)})
        return int(report.unpriced)
    rows = [
        Row("unpriced", "something without a privacy cost would leave", report.unpriced),
        Row("component", "component installed", report.component),
    ]
    rows += [Row("beside", "leaves", text) for text in report.beside]
    record(f"What would leave a site with {path}", rows)
    for scope in report.scopes:
        title = f"Scope {scope.name or '(none named)'}"
        if scope.default:
            title += ", the default"
        rows = [
            Row("data_filter", "data filter installed", scope.data_filter),
            Row("result_filter", "result filter installed", scope.result_filter),
            Row("owner", "owner", scope.problem or scope.owner),
            Row("leaves", "leaves", scope.leaves),
        ]
        record(title, rows)
    return int(report.unpriced)


@node.command("status")
def _status(
    policy: PolicyArgument,
    last: Annotated[
        int, typer.Option(help="The number of runs and of refusals to list, the latest last.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """Print this node's releases by run, the budget spent and left, and refused requests.

    Example: quietbit node status /var/lib/quietbit/policy.toml
    """
    from quietbit.node.budget import epsilon_spent
    from quietbit.node.costs import costs_beside
    from quietbit.node.ledger import FileLedger, Moment, NotedRelease

    check_int(last, "last", 1)
    rules = Policy.load(policy)
    ledger = FileLedger(rules.ledger, rules.counter)
    state = ledger.read()
    refused = ledger.refusals()
    saved = costs_beside(ledger.path)
    honest = rules.min_honest_clients or 0
    caps: list[dict[str, Any]] = []
    for cap in rules.caps:
        upper = epsilon_spent(state, cap, rules, honest, rules.least_epsilon, saved)
        caps.append(
            {
                "trust": cap.trust.value,
                "epsilon_upper": upper,
                "epsilon": cap.epsilon,
                "delta": cap.delta,
            }
        )
    runs: list[dict[str, Any]] = []
    of_runs: dict[str, list[NotedRelease]] = {}
    for noted in state.noted:
        of_runs.setdefault(noted.run, []).append(noted)
    for run, releases in of_runs.items():
        runs.append(
            {
                "run": run,
                "releases": len(releases),
                "first": _clock(releases[0].when.time),
                "last": _clock(releases[-1].when.time),
                "mechanisms": sorted({noted.mechanism[:16] for noted in releases}),
            }
        )
    refusals = [
        {
            "when": _clock(refusal.time),
            "run": refusal.run,
            "round": refusal.round,
            "reason": refusal.reason,
            "in full": refusal.text,
        }
        for refusal in refused.last
    ]
    counts = {"accepted": state.releases, **refused.counts}
    decisions = [{"decision": reason, "requests": count} for reason, count in counts.items()]
    today = state.last_day(Moment.now())
    rows = [
        Row("releases", "releases", state.releases, f"{state.releases} of {rules.releases}"),
        Row("releases_left", "left", max(0, rules.releases - state.releases)),
        Row("today", "in the last 24 hours", today, f"{today} of {rules.releases_per_day}"),
        Row("today_left", "left today", max(0, rules.releases_per_day - today)),
        Row("adjacency", "adjacency", rules.adjacency.value),
        Row("unit", "unit", rules.unit.value),
        Row("data_set", "data set", rules.data_set, rules.data_set or "none named"),
        Row("caps", "Epsilon spent (epsilon upper) and cap (epsilon)", caps),
        Row("decisions", "Requests by decision", decisions, "none"),
        Row("runs", "Releases by run", runs if json else runs[-last:], "none"),
        Row("refusals", "Requests refused", refusals if json else refusals[-last:], "none"),
    ]
    record("What this node has released", rows, json)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@node.command("serve")
def _serve(
    policy: PolicyArgument,
    socket: Annotated[str, typer.Option(help="The socket to listen on, an absolute path.")],
    mode: Annotated[
        str, typer.Option(help="The socket's permissions, octal: 660 lets its group connect.")
    ] = "600",
    log_level: Annotated[
        str, typer.Option(help="Decisions to log: info (all), warning (refusals), error.")
    ] = "info",
    json: JsonOption = False,
) -> None:
    """Run this node's gatekeeper: it has policy, ledger and keys, and answers with releases only.

    Run it as another user than the app's. The app gets the socket (node config quietbit.gatekeeper)
    and can neither read the ledger nor raise a cap. The gatekeeper does not restrict the app's
    network: block its other outbound connections. Ctrl-C ends it.

    Example: quietbit node serve /var/lib/quietbit/policy.toml --socket /run/quietbit/node.sock
    --mode 660
    """
    import logging
    import threading

    from quietbit.node.gate import LocalGate
    from quietbit.node.gatekeeper import Gatekeeper
    from quietbit.node.ledger import FileLedger

    check_known(log_level, LEVELS, "log-level")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    rules = Policy.load(policy)
    ledger = FileLedger(rules.ledger, rules.counter)
    ledger.read()  # raises now what is wrong with it
    is_octal = 0 < len(mode) <= 4 and set(mode) <= set("01234567")
    require(is_octal, "mode", mode, "permissions in octal, such as 660")
    gatekeeper = Gatekeeper(LocalGate(rules, ledger, {}), socket, mode=int(mode, 8))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: gatekeeper.stop())
    rows = [Row("socket", "socket", socket), Row("policy", "policy", str(policy))]
    record("This node's gatekeeper is running", rows, json)
    gatekeeper.serve()


@node.command("keys")
def _keys(
    path: Annotated[Path, _file("FILE", "The private key.")], json: JsonOption = False
) -> None:
    """Make this node's key for masked sums, or print the public key of an existing one.

    The private key stays in FILE, which only its owner can read. Send the public key to the
    operator of the directory, and not through the server.

    Example: quietbit node keys /var/lib/quietbit/own.pem
    """
    from quietbit.secagg.identity import Identity

    title = "The existing key"
    if not os.path.lexists(path):
        title = "A new key"
        Identity.new().save(path)
    rows = [
        Row("file", "private key", str(path)),
        Row("public", "public key", Identity.load(path).public.hex()),
    ]
    record(title, rows, json)


@node.command("directory")
def _directory(
    path: Annotated[Path, _file("FILE", "The directory.")],
    operator: Annotated[
        str, typer.Option(help="With --members the operator's key file, else its public key.")
    ],
    members: Annotated[
        str | None, typer.Option(help="Sign this text file: one public key and one name per line.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sign the list of members of masked sums, or verify and print one.

    The operator who signs it vouches that the members are different nodes, and must not be the
    server. Nodes' owners put the operator's public key into their policies (quietbit node init
    --operator). A new list replaces the old one.

    Example: quietbit node directory members.json --operator operator.pem --members nodes.txt
    """
    from quietbit.secagg.identity import Identity, MemberList

    if members is not None:
        signer = Identity.load(_absolute(operator))
        public = signer.public
        directory = MemberList.of(_members(members))
        write_text(path, directory.signed(signer), make_folder=False)
    else:
        public = _key(operator, "operator", "give --members to sign with a private key's file")
        directory = MemberList.load(path, public)
    listed = [{"name": member.name, "key": member.key.hex()} for member in directory.members]
    rows = [
        Row("directory", "file", str(path)),
        Row("operator", "signed by", public.hex()),
        Row("members", f"{len(listed)} members", listed),
    ]
    record("The directory", rows, json)


def _members(path: str) -> list[tuple[str, bytes]]:
    from quietbit.secagg.identity import MOST_BYTES, read_file

    try:
        text = read_file(_absolute(path), MOST_BYTES, "list of members").decode("utf-8")
    except UnicodeDecodeError as error:
        raise QuietbitError(f"Cannot read the list of members {path}: {error}.") from error
    lines = [line.strip() for line in text.splitlines()]
    members = []
    for line in lines:
        if line and not line.startswith("#"):
            key, _, name = line.partition(" ")
            remedy = "write one public key and one name per line"
            members.append((name.strip(), _key(key, "key of a member", remedy)))
    return members


def _key(text: str, name: str, remedy: str) -> bytes:
    """Return a public key of 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    require(len(key) == PUBLIC_SIZE, name, text, "64 hexadecimal digits", remedy)
    return key
