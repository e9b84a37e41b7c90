"""``quietbit node``: what a device releases is its owner's decision; policy, ledger, gatekeeper and keys."""

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
from quietbit.errors import QuietbitError, check_known, require, require_module
from quietbit.node.decisions import ACCEPTED
from quietbit.node.policy import Policy

__all__ = ["node"]

node = typer.Typer(
    name="node",
    help="What a device releases is its owner's decision: a policy, a ledger, and a gatekeeper that keeps both.",
    epilog="Start with: quietbit node init --help",
    no_args_is_help=True,
)


def _file(name: str, about: str) -> Any:
    """Return an argument that is a file, the same from wherever a process is started."""
    return typer.Argument(metavar=name, help=about, show_default=False, parser=_absolute)


def _absolute(text: str) -> Path:
    return Path(text).expanduser().absolute()


_absolute.__name__ = "file"  # what help calls the type


PolicyArgument = Annotated[Path, _file("POLICY", "The policy file.")]
SKIPPED = ("trust", "largest_exposure", "min_neighbours", "seed")  # for those who edit the file
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
    """Make an option of every rule of a policy, with the words that the policy's file has on it."""
    found = []
    rules: list[Attribute[Any]] = list(fields(Policy))
    for one in sorted(rules, key=lambda one: one.default is not NOTHING or one.name in USUAL):
        if one.name in SKIPPED:
            continue
        default = USUAL.get(one.name, ... if one.default is NOTHING else one.default)
        default = default.value if isinstance(default, Enum) else default
        kind = next((kind for kind in (int, float) if kind.__name__ in str(one.type)), str)
        note = one.metadata["about"] + (", with commas between" if "tuple" in str(one.type) else "")
        found.append(option(one.name, kind, f"{note[0].upper()}{note[1:]}.", default))
    return found


@node.command("init")
@takes(*_rule_options())
def _init(policy: PolicyArgument, json: JsonOption = False, **rules: Any) -> None:
    """Write this node's policy and begin its ledger, once.

    A run can ask for less than the policy allows and never for more. The ledger notes every release
    before it is made; a second file, the counter, is how a ledger that was put back is noticed.
    Nothing that exists is overwritten. With --min-honest-clients masked sums are allowed too.

    Example: quietbit node init /var/lib/quietbit/policy.toml --epsilon 8 --adjacency zero-out
    --largest-clip 1 --releases 200 --releases-per-day 20
    """
    from quietbit.node.policy import init

    for name in ("mechanisms", "runs", "metrics"):
        rules[name] = tuple(word.strip() for word in rules[name].split(",") if word.strip())
    for name in ("directory", "own_key"):
        rules[name] = str(_absolute(rules[name])) if rules[name] is not None else None
    found = init(policy, **rules)
    rows = [
        Row("policy", "policy", str(policy)),
        Row("ledger", "ledger", found.ledger),
        Row("counter", "counter", found.counter),
        Row("next", "next", f'name it in the node config: quietbit.policy="{policy}"'),
    ]
    record("This node's policy is written, and its ledger begun", rows, json)


@node.command("check")
def _check(
    policy: Annotated[Path, _file("FILE", "The policy, or NVFlare's privacy.json.")],
    json: JsonOption = False,
) -> int:
    """Check the policy, the ledger's chain of lines, and its counter; the exit code is 1 if anything is wrong.

    Of NVFlare's privacy.json it says, scope by scope, what would leave the site; the exit code is 1
    if any of it is not priced, and 2 if the file cannot be read.

    Example: quietbit node check /var/lib/quietbit/policy.toml
    """
    if policy.suffix == ".json":
        return _check_privacy_file(policy, json)
    from quietbit.node.ledger import FileLedger, LedgerError
    from quietbit.node.policy import PolicyError

    said, lines = "", 0
    try:
        found = Policy.load(policy)
        lines = FileLedger(found.ledger, found.counter).read().count
    except (LedgerError, PolicyError) as error:
        said = str(error)
    rows = [
        Row("fine", "fine", not said),
        Row("lines", "lines of the ledger", lines),
        Row("problem", "problem", said, said or "none"),
    ]
    record("This node's policy and ledger", rows, json)
    return 1 if said else 0


def _check_privacy_file(path: Path, as_json: bool) -> int:
    require_module("nvflare", "nvflare")
    from quietbit.nvflare.check import check_privacy

    found = check_privacy(path)
    if as_json:
        show_json({"unpriced": found.unpriced, **asdict(found)})
        return int(found.unpriced)
    rows = [
        Row("unpriced", "anything unpriced would leave", found.unpriced),
        Row("component", "component stands", found.component),
        *(Row("beside", "leaves", text) for text in found.beside),
    ]
    record(f"What would leave a site with {path}", rows)
    for one in found.scopes:
        rows = [
            Row("data_filter", "data filter stands", one.data_filter),
            Row("result_filter", "result filter stands", one.result_filter),
            Row("owner", "owner", one.problem or one.owner),
            Row("leaves", "leaves", one.leaves),
        ]
        record(f"Scope {one.name or '(none named)'}{', the default' if one.default else ''}", rows)
    return int(found.unpriced)


@node.command("status")
def _status(
    policy: PolicyArgument,
    last: Annotated[
        int, typer.Option(help="How many runs and refusals to list, the latest last.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """Say what was released, when, to which run, what is left, and which requests were refused.

    Example: quietbit node status /var/lib/quietbit/policy.toml
    """
    from quietbit.node.budget import epsilon_spent
    from quietbit.node.costs import costs_beside
    from quietbit.node.decisions import decisions_beside
    from quietbit.node.ledger import FileLedger, Moment

    found = Policy.load(policy)
    ledger = FileLedger(found.ledger, found.counter)
    state = ledger.read()
    history = decisions_beside(ledger.path).read()
    saved = costs_beside(ledger.path)
    caps: list[dict[str, Any]] = []
    for cap in found.caps:
        upper = epsilon_spent(
            state, cap, found, found.min_honest_clients or 0, found.least_epsilon, saved
        )
        caps.append(
            {
                "trust": cap.trust.value,
                "epsilon_upper": upper,
                "epsilon": cap.epsilon,
                "delta": cap.delta,
            }
        )
    runs: list[dict[str, Any]] = []
    for run, made in state.runs.items():
        first = _clock(made[0][1])
        latest = _clock(made[-1][1])
        names = sorted({name[:16] for _, _, name in made})
        runs.append(
            {"run": run, "releases": len(made), "first": first, "last": latest, "mechanisms": names}
        )
    refusals = [
        {
            "when": _clock(decision.time),
            "run": decision.run,
            "round": decision.round,
            "reason": decision.reason,
            "in full": decision.text,
        }
        for decision in history.last
        if decision.reason != ACCEPTED
    ]
    today = state.last_day(Moment.now())
    rows = [
        Row("releases", "releases", state.releases, f"{state.releases} of {found.releases}"),
        Row("releases_left", "left", max(0, found.releases - state.releases)),
        Row("today", "in the last 24 hours", today, f"{today} of {found.releases_per_day}"),
        Row("today_left", "left today", max(0, found.releases_per_day - today)),
        Row("adjacency", "adjacency", found.adjacency.value),
        Row("unit", "unit", found.unit.value),
        Row("data_set", "data set", found.data_set, found.data_set or "none named"),
        Row("caps", "Cost so far (epsilon upper) and cap (epsilon)", caps),
        Row("runs", "To whom", runs if json else runs[-last:], "nobody yet"),
        Row("refusals", "Requests refused", refusals if json else refusals[-last:], "none"),
    ]
    record("What this node has released", rows, json)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@node.command("metrics")
def _metrics(policy: PolicyArgument) -> None:
    """Print what is spent, left and decided in the Prometheus text format; nothing of it depends on data.

    Example: quietbit node metrics /var/lib/quietbit/policy.toml >
    /var/lib/node_exporter/quietbit.prom
    """
    from quietbit.node.costs import costs_beside
    from quietbit.node.decisions import decisions_beside
    from quietbit.node.ledger import FileLedger
    from quietbit.node.metrics import metrics_text

    found = Policy.load(policy)
    ledger = FileLedger(found.ledger, found.counter)
    history = decisions_beside(ledger.path).read()
    print(metrics_text(found, ledger.read(), history, costs_beside(ledger.path)), end="")


@node.command("serve")
def _serve(
    policy: PolicyArgument,
    socket: Annotated[str, typer.Option(help="The socket to make, an absolute path.")],
    mode: Annotated[
        str, typer.Option(help="Its permissions, octal: with 660 its group can connect too.")
    ] = "600",
    log_level: Annotated[
        str, typer.Option(help="Decisions to log: info (all), warning (refusals), error.")
    ] = "info",
    json: JsonOption = False,
) -> None:
    """Be this node's gatekeeper: hold policy, ledger and keys, and hand out nothing but releases.

    Run it as another user than the app. The app gets the socket (node config quietbit.gatekeeper)
    and can neither read the ledger nor raise a cap. It is not kept from the network by this: that
    is the owner's to do. Ctrl-C ends it.

    Example: quietbit node serve /var/lib/quietbit/policy.toml --socket /run/quietbit/node.sock
    --mode 660
    """
    import logging
    import threading

    from quietbit.node.gatekeeper import Gatekeeper
    from quietbit.node.ledger import FileLedger
    from quietbit.node.release import LocalGate

    check_known(log_level, LEVELS, "log-level")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    found = Policy.load(policy)
    ledger = FileLedger(found.ledger, found.counter)
    ledger.read()  # what is wrong with it is said now
    octal = 0 < len(mode) <= 4 and set(mode) <= set("01234567")
    require(octal, "mode", mode, "permissions in octal, such as 660")
    gate = Gatekeeper(LocalGate(found, ledger, {}), socket, mode=int(mode, 8))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: gate.stop())
    rows = [Row("socket", "socket", socket), Row("policy", "policy", str(policy))]
    record("This node's gatekeeper serves", rows, json)
    gate.serve()


@node.command("keys")
def _keys(
    path: Annotated[Path, _file("FILE", "The private key.")], json: JsonOption = False
) -> None:
    """Make this node's identity for masked sums, or show the public key of one that is there.

    The private key stays in FILE, which only its owner can read. Give the public key to the
    operator of the directory, by a way that the server is not part of.

    Example: quietbit node keys /var/lib/quietbit/own.pem
    """
    from quietbit.secagg.identity import Identity

    title = "The identity that is there"
    if not os.path.lexists(path):
        title = "A new identity"
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
        str, typer.Option(help="The operator's private key, to sign, or public key, to check.")
    ],
    members: Annotated[
        str | None, typer.Option(help="A text file to sign: lines of a public key and a name.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sign the list of members of masked sums, or check and show one.

    Whoever signs it vouches that its members are different nodes, and must not be the server.
    Nodes' owners write the operator's public key down in their policies (quietbit node init
    --operator). A new list replaces an old one.

    Example: quietbit node directory members.json --operator operator.pem --members nodes.txt
    """
    from quietbit.secagg.identity import Directory, Identity

    if members is not None:
        signer = Identity.load(_absolute(operator))
        found, public = Directory.of(_members(members)), signer.public
        write_text(path, found.signed(signer), make_folder=False)
    else:
        public = _key(operator, "operator")
        found = Directory.load(path, public)
    named = [{"name": one.name, "key": one.key.hex()} for one in found.members]
    rows = [Row("directory", "file", str(path)), Row("operator", "signed by", public.hex())]
    record("A directory", [*rows, Row("members", f"{len(named)} members", named)], json)


def _members(path: str) -> list[tuple[str, bytes]]:
    try:
        lines = [line.strip() for line in _absolute(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise QuietbitError(f"Cannot read the members {path}: {error}.") from error
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name.strip(), _key(key, "key of a member")) for key, _, name in pairs]


def _key(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    require(len(found) == 32, name, text, "64 hexadecimal digits")
    return found
