"""Policies, mechanisms and requests for tests of the node."""

import threading
from contextlib import contextmanager

import pytest

from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node.channel import new_socket
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper, RemoteGate
from quietbit.node.ledger import FileLedger
from quietbit.node.policy import Policy
from quietbit.node.refusal import NotAllowed
from quietbit.node.request import Request, description_of

DIMENSION = 42
BALL = Ball(Norm.L2, DIMENSION)
MECHANISM = InterpolatedMVU(solve(DesignSpec(2, 1, 0.5)), BALL)
NOISY = Gaussian(BALL, 4.0)


def policy(folder, **changes):
    """A policy whose files are in a folder."""
    given = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "adjacency": "replace-one",
        "mechanisms": ("imvu", "gaussian"),
        "largest_clip": 2.0,
        "releases": 50,
        "releases_per_day": 40,
        "ledger": str(folder / "ledger"),
        "counter": str(folder / "counter"),
        "response_seconds": 0.0,
    }
    return Policy(**given | changes)


def write_policy(folder, **changes):
    """Write a policy and its ledger, as `quietbit node init` does; return the policy's path."""
    found = policy(folder, **changes)
    FileLedger.create(found.ledger, found.counter)
    path = folder / "policy.toml"
    path.write_text(found.text())
    path.chmod(0o600)
    return str(path)


def keeper(folder, **changes):
    """A keeper with a new ledger."""
    found = policy(folder, **changes)
    FileLedger.create(found.ledger, found.counter)
    return gate_of(found)


def gate_of(rules):
    """A keeper with the ledger that there is, as another process opens it."""
    return LocalGate(rules, FileLedger(rules.ledger, rules.counter), {})


@contextmanager
def forbids(rule):
    """Expect `NotAllowed` by this rule of the policy, whose number a server is not told."""
    with pytest.raises(NotAllowed) as caught:
        yield
    assert caught.value.public.detail == rule
    assert not any(letter.isdigit() for letter in str(caught.value))


def declines(gate, why, *requests):
    """Expect that a gate notes nothing for these; ``why`` is an error or a rule of the policy."""
    before = gate.ledger.read().releases
    for one in requests:
        with forbids(why) if isinstance(why, str) else pytest.raises(why):
            gate.accept(one)
    assert gate.ledger.read().releases == before


@contextmanager
def serving(folder, **changes):
    """A gatekeeper with a new ledger; its socket is `gate` in the folder."""
    served = Gatekeeper(keeper(folder, **changes), folder / "gate")
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield RemoteGate(folder / "gate")
    finally:
        served.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert not (folder / "gate").exists()


def connected(folder):
    """A connection to the gatekeeper of a folder."""
    connection = new_socket()
    connection.connect(str(folder / "gate"))
    return connection


def books(folder):
    return FileLedger(folder / "ledger", folder / "counter").read()


def request(number=1, mechanism=MECHANISM, **changes):
    given = {
        "run": 7,
        "round": number,
        "node": 11,
        "dimension": mechanism.ball.dimension,
        "mechanism": description_of(mechanism),
        "epsilon": 1e6,
        "delta": 1e-5,
        "adjacency": "replace-one",
        "client": 0,
    }
    return Request(**given | changes)
