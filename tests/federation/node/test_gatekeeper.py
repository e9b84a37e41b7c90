"""The gate behind a socket: the same answers as in the process, and no others."""

import contextlib
import os
import socket
import stat
import threading
import time

import numpy as np
import pytest

from federation.node.makers import DIMENSION, MECHANISM, books, connected, request, serving
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.node import channel, gatekeeper
from quietbit.node.channel import HEAD, MAGIC, receive, send
from quietbit.node.gate import LocalGate
from quietbit.node.gatekeeper import Gatekeeper, RemoteAcceptedRequest, RemoteGate
from quietbit.node.policy import PolicyError
from quietbit.node.refusal import AnsweredBefore, BudgetSpent, NotAllowed, Noted, Unusable
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
UPDATE = np.linspace(-0.2, 0.3, DIMENSION)


def test_the_app_is_told_where_its_owner_keeps_models(tmp_path):
    """Behind a gatekeeper the folder was once forgotten, and a restarted node lost its model."""
    with serving(tmp_path, models=str(tmp_path / "models")) as remote:
        assert remote.models.path == tmp_path / "models"
    (tmp_path / "b").mkdir()
    with serving(tmp_path / "b") as remote:
        assert remote.models is None


def test_a_node_that_asks_itself_hears_its_rounds_and_what_they_cost(tmp_path):
    with serving(tmp_path) as remote:
        assert remote.last_round(7) == 0
        remote.accept(request(1)).release(None)
        once = remote.spent(request(1))
        remote.accept(request(2)).release(None)
        assert remote.last_round(7) == 2
        assert remote.last_round(8) == 0
        assert 0.0 < once < remote.spent(request(2))


@pytest.mark.parametrize(
    "update", [None, [np.full(DIMENSION, np.nan)], [UPDATE[:-1]], ["x"], [np.zeros(10**5)]]
)
def test_failures_are_releases_of_zero_here_too(tmp_path, update):
    with serving(tmp_path, seed=5) as remote:
        data = remote.accept(request()).release(update)
    zero = Uplink(MECHANISM).send(np.zeros(DIMENSION), seeded_client_rng(5)(0, 0))
    assert bytes(Framed.from_bytes(data).payload) == zero


def test_refusals_keep_their_kind(tmp_path):
    with serving(tmp_path) as remote:
        remote.accept(request(1, run=3)).release(None)
        with pytest.raises(AnsweredBefore):
            remote.accept(request(1, run=3))
        with pytest.raises(InvalidParameter):
            remote.accept(request(mechanism=MECHANISM, dimension=3))
        with pytest.raises(InvalidParameter):
            remote.step(request())
        with pytest.raises(NotAllowed):
            remote.accept(request(1, Gaussian(Ball(Norm.L2, DIMENSION), 2.0), clip=9.0))
        with pytest.raises(BudgetSpent):
            remote.accept(request(1, Gaussian(Ball(Norm.L2, DIMENSION), 0.1)))
        remote.forget(3)
        (tmp_path / "ledger").rename(tmp_path / "gone")
        with pytest.raises(Unusable, match="owner's log"):
            remote.accept(request(40))


def test_a_connection_that_ends_is_noted_and_releases_nothing(tmp_path):
    with serving(tmp_path) as remote:
        remote.accept(request(1))._connection.close()
        assert books(tmp_path).releases == 1
        assert remote.accept(request(2)).release(None)
        accepted = remote.accept(request(3))
        accepted._connection.shutdown(socket.SHUT_RDWR)
        with pytest.raises(Noted):
            accepted.release([UPDATE])


def test_an_update_before_the_request_is_not_taken(tmp_path):
    with serving(tmp_path), connected(tmp_path) as raw:
        with contextlib.suppress(OSError):  # the gate may shut before all of it has gone
            send(raw, {"ask": "release", "request": request().to_json()}, UPDATE.tobytes())
            raw.shutdown(socket.SHUT_WR)
            assert "refused" in receive(raw, 0, 5.0)[0]
        assert books(tmp_path).releases == 0


def test_the_socket_is_the_owners(tmp_path):
    with serving(tmp_path):
        mode = os.stat(tmp_path / "gate").st_mode
        assert stat.S_ISSOCK(mode)
        assert mode & 0o777 == 0o600
        with pytest.raises(QuietbitError, match="another gatekeeper"):
            Gatekeeper(None, tmp_path / "gate")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "gate"))
    left.close()
    gate = Gatekeeper(None, tmp_path / "gate", mode=0o660)  # what a crash left is replaced
    assert os.stat(tmp_path / "gate").st_mode & 0o777 == 0o660
    gate.stop()
    gate.serve()
    (tmp_path / "gate").write_text("a file")
    with pytest.raises(QuietbitError, match="not a socket"):
        Gatekeeper(None, tmp_path / "gate")
    with refuses("socket", "gate"):
        Gatekeeper(None, "gate")
    with pytest.raises(PolicyError, match="absolute path"):
        RemoteGate("gate")
    with pytest.raises(Unusable):
        RemoteGate(tmp_path / "nobody").accept(request())


def test_many_at_once_lose_no_release(tmp_path):
    with serving(tmp_path, epsilon=1e3) as remote:
        sizes = []

        def ask(run):
            sizes.append(len(remote.accept(request(1, run=run)).release([UPDATE])))

        threads = [threading.Thread(target=ask, args=(run,)) for run in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(sizes) == 12
    assert len(set(sizes)) == 1
    assert books(tmp_path).releases == 12


def test_no_more_is_read_than_an_update_or_a_piece_of_gradients(tmp_path):
    """1.5 GB were buffered for an update of 336 bytes."""
    with serving(tmp_path), connected(tmp_path) as raw:
        send(raw, {"ask": "release", "request": request().to_json()})
        assert receive(raw, 0, 60.0)[0] == {"accepted": True}
        raw.sendall(
            HEAD.pack(MAGIC, 2, gatekeeper.PIECE + 1) + b"{}"
        )  # refused by its head, before a byte of it
        assert receive(raw, 0, 60.0)[0]["refused"] == "unusable"


def test_idle_connections_keep_nobody_out(tmp_path):
    """64 of them closed the gate for a day."""
    with serving(tmp_path, epsilon=1e3, releases=1000, releases_per_day=1000) as remote:
        waiting = remote.accept(request(1))  # trains, while others only connect
        idle = [connected(tmp_path) for _ in range(200)]
        assert remote.accept(request(2)).release([UPDATE])
        assert waiting.release([UPDATE])
        for one in idle:
            one.close()


def test_a_request_that_comes_drop_by_drop_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(gatekeeper, "ASK", 0.3)
    with serving(tmp_path), connected(tmp_path) as raw:
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in HEAD.pack(MAGIC, 4, 0) * 3:
                raw.sendall(bytes([byte]))
                time.sleep(0.1)
        assert time.monotonic() - begun < 2.0


def test_the_places_of_a_late_apps_batch_are_never_taken_for_the_release():
    here, there = socket.socketpair()
    accepted = RemoteAcceptedRequest(here, DIMENSION)
    app = threading.Thread(target=accepted.draw, args=(3,))
    app.start()
    assert receive(there, 0, 10.0)[0] == {"draw": 3}
    releases = []
    engine = threading.Thread(target=lambda: releases.append(accepted.release(None)))
    engine.start()  # the app is late: its draw is under way
    there.settimeout(0.2)
    with pytest.raises(TimeoutError):
        there.recv(1)
    send(there, {}, np.arange(3, dtype="<i8").tobytes())
    assert receive(there, 0, 10.0)[0] == {"update": False}
    send(there, {}, b"release")
    app.join(10.0)
    engine.join(10.0)
    assert releases == [b"release"]
    for late in (
        lambda: accepted.draw(3),
        accepted.step,
        lambda: accepted.add(np.zeros((1, DIMENSION))),
    ):
        with pytest.raises(Noted):
            late()
    there.close()


def test_an_answer_that_was_not_waited_for_ends_the_connection(monkeypatch):
    here, there = socket.socketpair()
    accepted = RemoteAcceptedRequest(here, DIMENSION)
    monkeypatch.setattr(gatekeeper, "WAIT", 0.05)
    with pytest.raises(TimeoutError):
        accepted.draw(3)
    with contextlib.suppress(BrokenPipeError):
        send(there, {}, np.arange(3, dtype="<i8").tobytes())
    with pytest.raises(Noted):
        accepted.release(None)
    there.close()


def test_idle_connections_do_not_end_a_request_that_is_being_decided(tmp_path, monkeypatch):
    """Its release would be noted and lost: whoever may connect could spend the node's budget."""
    accept = LocalGate.accept
    begun = threading.Event()

    def slow(gate, asked):
        begun.set()
        time.sleep(1.0)
        return accept(gate, asked)

    monkeypatch.setattr(LocalGate, "accept", slow)
    with serving(tmp_path) as remote, contextlib.ExitStack() as idle:
        made = []
        app = threading.Thread(
            target=lambda: made.append(remote.accept(request(1)).release([UPDATE]))
        )
        app.start()
        assert begun.wait(10)
        for _ in range(2 * channel.CONNECTIONS):
            idle.enter_context(connected(tmp_path))
        app.join(30)
    assert len(made) == 1
    assert books(tmp_path).releases == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_socket_in_another_users_folder_is_not_served(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, 12345)
    with pytest.raises(InvalidParameter, match="belongs to user 12345"):
        Gatekeeper(None, folder / "gate")
