"""``quietbit node``: what the owner of a device decides, checks, reads and serves."""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import NOTHING, Attribute, fields

import quietbit
from quietbit._files import write_text
from quietbit.cli.console import JsonOption, Row, column_table, record, rounded_up, show_json
from quietbit.cli.node_privacy import check_privacy_file
from quietbit.cli.options import with_options
from quietbit.errors import require
from quietbit.node.policy import RULES, Policy, PolicyError

__all__ = ["NODE_COMMANDS", "node"]

NO = 1
node = typer.Typer(
    name="node",
    help="What a device releases is its owner's decision: a policy, a ledger, and a gatekeeper that keeps both.",
    epilog="Start with: quietbit node init --help",
    no_args_is_help=True,
)
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="The policy file.", show_default=False)]


SKIPPED = ("trust", "largest_exposure", "min_neighbours", "pricing_seconds", "seed")  # for those who edit the file
USUAL = {"delta": 1e-5, "mechanisms": "imvu", "runs": "*", "metrics": "", "least_epsilon": 0.001, "ledger": None,
         "counter": None}  # fmt: skip


def _rule_options() -> list[inspect.Parameter]:
    """An option for every rule of a policy, with the words that the policy's file has on it."""
    found = []
    rules: list[Attribute[Any]] = list(fields(Policy))
    for one in sorted(rules, key=lambda one: one.default is not NOTHING or one.name in USUAL):
        if one.name in SKIPPED:
            continue
        default = USUAL.get(one.name, inspect.Parameter.empty if one.default is NOTHING else one.default)
        default = default.value if isinstance(default, Enum) else default
        kind = next((kind for kind in (int, float) if kind.__name__ in str(one.type)), str)
        note = RULES[one.name][0] + (", with commas between" if "tuple" in str(one.type) else "")
        told = typer.Option(help=f"{note[0].upper()}{note[1:]}.")
        shape: Any = Annotated[kind | None if default is None else kind, told]
        found.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shape))
    return found


@with_options(_rule_options())
def node_init(policy: PolicyArgument, json: JsonOption = False, **rules: Any) -> None:
    """Write this node's policy and begin its ledger, once.

    A run can ask for less than the policy allows and never for more. The ledger notes every release before it is made;
    a second file, the counter, is how a ledger that was put back is noticed. Nothing that exists is overwritten. With
    --min-honest-clients masked sums are allowed too.

    Example: quietbit node init /var/lib/quietbit/policy.toml --epsilon 8 --adjacency zero-out --largest-clip 1
    --releases 200 --releases-per-day 20
    """
    from quietbit.node.init import init

    lists = {name: _list(rules[name]) for name in ("mechanisms", "runs", "metrics")}
    paths = {name: str(_absolute(rules[name])) for name in ("directory", "own_key") if rules[name] is not None}
    found, place = init(policy, **{**rules, **lists, **paths}), _absolute(policy)
    rows = [
        Row("policy", "policy", str(place)),
        Row("ledger", "ledger", found.ledger),
        Row("counter", "counter", found.counter),
        Row("next", "next", f'name it in the node config: quietbit.policy="{place}"'),
    ]
    record("This node's policy is written, and its ledger begun", rows, json)


def node_check(
    policy: Annotated[
        str, typer.Argument(metavar="FILE", help="The policy, or NVFlare's privacy.json.", show_default=False)
    ],
    json: JsonOption = False,
) -> int:
    """Check the policy, the ledger's chain of lines, and its counter; the exit code is 1 if anything is wrong.

    Of NVFlare's privacy.json it says, scope by scope, what would leave the site; the exit code is 1 if any of it is not
    priced, and 2 if the file cannot be read.

    Example: quietbit node check /var/lib/quietbit/policy.toml
    """
    if policy.endswith(".json"):
        return check_privacy_file(policy, json)
    from quietbit.node.ledger import FileLedger, LedgerError

    said, lines = "", 0
    try:
        found = Policy.load(_absolute(policy))
        lines = FileLedger(found.ledger, found.counter).read().count
    except (LedgerError, PolicyError) as error:
        said = str(error)
    rows = [
        Row("fine", "fine", not said, "no" if said else "yes"),
        Row("lines", "lines of the ledger", lines),
        Row("problem", "problem", said, said or "none"),
    ]
    record("This node's policy and ledger", rows, json)
    return NO if said else 0


def node_status(
    policy: PolicyArgument,
    last: Annotated[int, typer.Option(help="How many runs to list, the latest last.")] = 20,
    json: JsonOption = False,
) -> None:
    """Say what was released, when, to which run, and what is left.

    Example: quietbit node status /var/lib/quietbit/policy.toml
    """
    from quietbit.node.ledger import FileLedger, Moment
    from quietbit.node.release import account_of

    found = Policy.load(_absolute(policy))
    books = FileLedger(found.ledger, found.counter).read()
    caps: list[dict[str, Any]] = []
    for cap in found.caps():
        reached = account_of(books, cap, found.min_honest_clients or 0, found.least_epsilon, found.data_set).epsilon()
        caps.append({"trust": cap.trust.value, "epsilon": cap.epsilon, "epsilon_upper": reached, "delta": cap.delta})
    runs: list[dict[str, Any]] = [
        {
            "run": run, "releases": len(made), "first": _moment(made[0][1]), "last": _moment(made[-1][1]),
            "mechanisms": sorted({name[:16] for _, _, name in made}),
        }
        for run, made in books.runs.items()
    ]  # fmt: skip
    today = books.last_day(Moment.now())
    values: dict[str, Any] = {
        "releases": books.releases,
        "releases_left": max(0, found.releases - books.releases),
        "today": today,
        "today_left": max(0, found.releases_per_day - today),
        "adjacency": found.adjacency.value,
        "unit": found.unit.value,
        "data_set": found.data_set,
        "caps": caps,
        "runs": runs,
    }
    if json:
        show_json(values)
        return
    rows = [
        Row("releases", "releases", books.releases, f"{books.releases} of {found.releases}"),
        Row("today", "in the last 24 hours", today, f"{today} of {found.releases_per_day}"),
        *(
            Row(
                cap["trust"],
                f"epsilon ({cap['trust']})",
                cap["epsilon_upper"],
                f"{rounded_up(cap['epsilon_upper'], 4)} of {cap['epsilon']:g} at delta {cap['delta']:g}, "
                f"{found.adjacency.value}" + (f", any sample of {found.data_set}" if found.data_set else ""),
            )
            for cap in caps
        ),
    ]
    record("What this node has released", rows, False)
    if runs:
        lines = [
            [one["run"], str(one["releases"]), one["first"], one["last"], ", ".join(one["mechanisms"])] for one in runs
        ]
        column_table("To whom", ["run", "releases", "first", "last", "mechanisms"], lines[-last:])


def node_serve(
    policy: PolicyArgument,
    socket: Annotated[str, typer.Option(help="The socket to make, an absolute path.")],
    mode: Annotated[
        str, typer.Option(help="Its permissions, octal: 660 lets the group of the socket connect.")
    ] = "600",
    json: JsonOption = False,
) -> None:
    """Be this node's gatekeeper: hold policy, ledger and keys, and hand out nothing but releases.

    Run it as another user than the app. The app gets the socket (node config quietbit.gatekeeper) and can neither read
    the ledger nor raise a cap. It is not kept from the network by this: that is the owner's to do. Ctrl-C ends it.

    Example: quietbit node serve /var/lib/quietbit/policy.toml --socket /run/quietbit/node.sock --mode 660
    """
    import logging
    import threading

    from quietbit.node.gatekeeper import Gatekeeper
    from quietbit.node.ledger import FileLedger
    from quietbit.node.release import LocalGate

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    found = Policy.load(_absolute(policy))
    ledger = FileLedger(found.ledger, found.counter)
    ledger.read()  # what is wrong with it is said now
    octal = len(mode) <= 4 and all(digit in "01234567" for digit in mode) and bool(mode)
    require(octal, "mode", mode, "permissions in octal, such as 660")
    gate = Gatekeeper(LocalGate(found, ledger, {}), socket, mode=int(mode, 8))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: gate.stop())
    record("This node's gatekeeper serves", [Row("socket", "socket", socket), Row("policy", "policy", policy)], json)
    gate.serve()


def node_keys(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The private key.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Make this node's identity for masked sums, or show the public key of one that is there.

    The private key stays in FILE, which only its owner can read. Give the public key to the operator of the directory,
    by a way that the server is not part of.

    Example: quietbit node keys /var/lib/quietbit/own.pem
    """
    from quietbit.secagg.identity import Identity

    place = _absolute(path)
    fresh = not os.path.lexists(place)
    if fresh:
        found = Identity.new()
        found.save(place)
    else:
        found = Identity.load(place)
    rows = [Row("file", "private key", str(place)), Row("public", "public key", found.public.hex())]
    record("A new identity" if fresh else "The identity that is there", rows, json)


def node_directory(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The directory.", show_default=False)],
    operator: Annotated[
        str, typer.Option(help="The operator's private key, to sign a directory, or public key, to check one.")
    ],
    members: Annotated[
        str | None, typer.Option(help="A text file to sign: on every line a public key and a name.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Sign the list of members of masked sums, or check and show one.

    Whoever signs it vouches that its members are different nodes, and must not be the server. Nodes' owners write the
    operator's public key down in their policies (quietbit node init --operator). A new list replaces an old one.

    Example: quietbit node directory members.json --operator operator.pem --members nodes.txt
    """
    from quietbit.secagg.identity import Directory, Identity

    if members is not None:
        signer = Identity.load(_absolute(operator))
        found = Directory.of(_member(line) for line in _lines(members))
        write_text(_absolute(path), found.signed(signer), make_folder=False)
        public = signer.public
    else:
        public = _hexadecimal(operator, "operator")
        found = Directory.load(_absolute(path), public)
    values = {
        "directory": str(_absolute(path)),
        "operator": public.hex(),
        "members": [{"name": one.name, "key": one.key.hex()} for one in found.members],
    }
    if json:
        show_json(values)
        return
    column_table(
        f"{len(found.members)} members, signed by {public.hex()}",
        ["name", "public key"],
        [[one.name, one.key.hex()] for one in found.members],
    )


def _lines(path: str) -> list[str]:
    try:
        text = _absolute(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise quietbit.QuietbitError(f"Cannot read the members {path}: {error}.") from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def _member(line: str) -> tuple[str, bytes]:
    key, _, name = line.partition(" ")
    return name.strip(), _hexadecimal(key, "key of a member")


def _hexadecimal(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    require(len(found) == 32, name, text, "64 hexadecimal digits")
    return found


def _absolute(policy: str) -> Path:
    """What a node config must name: the same file from wherever a process is started."""
    return Path(policy).expanduser().absolute()


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


NODE_COMMANDS: dict[str, Callable[..., Any]] = {
    "init": node_init,
    "check": node_check,
    "status": node_status,
    "serve": node_serve,
    "keys": node_keys,
    "directory": node_directory,
}
for name, command in NODE_COMMANDS.items():
    node.command(name)(command)
