"""``quietbit node serve``: the gatekeeper, which holds what the app on a device must not."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from quietbit.cli.console import JsonOption, Row, record
from quietbit.cli.options import PolicyArgument, absolute
from quietbit.errors import require

__all__ = ["node_serve"]


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
    from quietbit.node.policy import Policy
    from quietbit.node.release import LocalGate

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    found = Policy.load(absolute(policy))
    ledger = FileLedger(found.ledger, found.counter)
    ledger.read()  # what is wrong with it is said now
    octal = 0 < len(mode) <= 4 and set(mode) <= set("01234567")
    require(octal, "mode", mode, "permissions in octal, such as 660")
    gate = Gatekeeper(LocalGate(found, ledger, {}), socket, mode=int(mode, 8))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: gate.stop())
    record("This node's gatekeeper serves", [Row("socket", "socket", socket), Row("policy", "policy", policy)], json)
    gate.serve()
