"""What an app, a store or a peer does around the note in the ledger: no word leaves, none is lost.

Idea     before a request is noted, nothing that an app says may leave, because it is not priced;
         after it is noted, whatever fails must say that it counts, or a server's report falls below
         the ledger.
"""

import socket
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from engines.flower import test_replay as replaying
from engines.flower.kit import DIMENSION, HandGrid, app, be_the_server, context, gated, model
from federation.node.makers import MECHANISM, books, keeper, request, write_policy
from quietbit.errors import InvalidParameter
from quietbit.federation.messages import ANSWERED, DECLINED, request_record
from quietbit.node import gate
from quietbit.node.channel import receive
from quietbit.node.gatekeeper import RemoteGate
from quietbit.node.ledger import opened
from quietbit.node.refusal import Noted, Reason, Refusal

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
NOT_LISTED = Refusal(Reason.NOT_ALLOWED, "mechanisms")
OF_A_PATIENT = "patient 4711 is 63 years old"
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 1e6,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 4,
}


class Wordy(RuntimeError):
    """An error whose text is an error, too."""

    def __str__(self):
        raise InvalidParameter(OF_A_PATIENT)


def raising(error):
    def start(_):
        raise error

    return start


def of_arrays(arrays):
    return lambda _: ArrayRecord({name: Array(value) for name, value in arrays.items()})


class Named(dict[str, Any]):
    """Arrays whose names come one by one, until they fail."""

    def items(self):
        raise InvalidParameter(OF_A_PATIENT)


STARTS = {
    "refuses": raising(InvalidParameter(OF_A_PATIENT)),
    "fails": raising(RuntimeError(OF_A_PATIENT)),
    "fails in its words": raising(Wordy()),
    "exits": raising(SystemExit(OF_A_PATIENT)),
    "name": of_arrays({OF_A_PATIENT: np.zeros(3, dtype=np.int64)}),
    "doubles": of_arrays({OF_A_PATIENT: np.zeros(replaying.SIZE)}),
    "not finite": of_arrays({OF_A_PATIENT: np.full(replaying.SIZE, np.nan, dtype=np.float32)}),
    "size": of_arrays({OF_A_PATIENT: np.zeros(len(OF_A_PATIENT), dtype=np.float32)}),
    "lazy": lambda _: Named(),
    "nothing": lambda _: None,
    "text": lambda _: OF_A_PATIENT,
}


@pytest.mark.parametrize("kind", STARTS)
def test_no_word_of_an_apps_first_model_leaves(kind, tmp_path):
    """It was sent to the server as the fault of the request, and no release was noted."""
    path = write_policy(
        tmp_path,
        epsilon=1e6,
        adjacency="zero-out",
        mechanisms=["vmvu"],
        models=str(tmp_path / "models"),
    )
    federation = replaying.Federation(more={"quietbit.replay.start": "app"})
    grid = HandGrid(federation.contexts)
    strategy = federation.strategy
    message, *_ = strategy.configure_train(1, federation.arrays, ConfigRecord(), grid)
    place = context(11, 0, federation.config, quietbit_policy=path)
    reply = gated(start=STARTS[kind])(message, place, app(np.zeros(DIMENSION)))
    constants = [Refusal(reason).to_text() for reason in (Reason.NEEDS_MODEL, Reason.UNUSABLE)]
    assert reply.error.reason in [f"{DECLINED}{text}" for text in constants]
    assert books(tmp_path).releases == 0
    assert OF_A_PATIENT not in str(list((tmp_path / "models").glob("*")))


def asked(number):
    be_the_server()
    record = ConfigRecord(request_record(number, MECHANISM))
    content = RecordDict({"arrays": model(), "quietbit": record})
    return Message(content, dst_node_id=11, message_type="train")


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(28, "full"), InvalidParameter(OF_A_PATIENT)]
)
def test_a_noted_release_that_cannot_be_prepared_counts(error, tmp_path, monkeypatch):
    """The server was told that nothing was released, and its report stayed below the ledger."""
    place = context(11, 0, CONFIG, quietbit_policy=write_policy(tmp_path, epsilon=1e6))

    def fails(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(gate, "make_release", fails)
        reply = gated()(asked(1), place, app(np.zeros(DIMENSION)))
    assert books(tmp_path).releases == 1
    assert reply.error.reason == f"{ANSWERED}{Refusal(Reason.NOTED).to_text()}"
    assert not gated()(asked(2), place, app(np.zeros(DIMENSION))).has_error()
    assert books(tmp_path).releases == 2


@pytest.mark.parametrize("table", ["refusals", "reasons"])
def test_damaged_refusals_stop_no_noted_release(table, tmp_path):
    place = context(11, 0, CONFIG, quietbit_policy=write_policy(tmp_path, epsilon=1e6))
    assert not gated()(asked(1), place, app(np.zeros(DIMENSION))).has_error()
    with opened(tmp_path / "ledger", "ledger", write=True) as database:
        database.execute(f"drop table {table}")
    reply = gated()(asked(2), place, app(np.zeros(DIMENSION)))
    assert books(tmp_path).releases == 2
    assert not reply.has_error()


@pytest.mark.parametrize("answer", [b"", b"QBG2", b"x" * 64])
def test_a_gatekeeper_that_ends_after_the_request_may_have_noted_it(answer, tmp_path):
    """Its app said that nothing was released; the gatekeeper had noted it before it was killed."""
    gate = keeper(tmp_path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "gate"))
    listening.listen()

    def serve():
        connection, _ = listening.accept()
        with connection:
            message, _ = receive(connection, 0, 10.0)
            gate.accept(request(1, **{"run": message["request"]["run"]}))
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(Noted):
        RemoteGate(tmp_path / "gate").accept(request(1))
    thread.join()
    listening.close()
    assert books(tmp_path).releases == 1


PLUG_IN = """
import sys
from quietbit.node.refusal import NotAllowed
from quietbit.federation.client import evaluates, plan_of

config = {"quietbit.clip": 1.0, "quietbit.epsilon": 9.0, "quietbit.adjacency": "zero-out"}
config |= {"quietbit.releases": 3}
sums = {"quietbit.secure-aggregation.threshold": 5, "quietbit.secure-aggregation.honest-clients": 3}
sums |= {"quietbit.secure-aggregation.adversary": "active"}
answers = {"quietbit.evaluate.epsilon": 0.5}
named = [{"quietbit.mechanism": "sign"}, {"quietbit.mechanism.name": "sign"}]
named += [{"quietbit": {"mechanism": "sign"}}, {"quietbit.mechanism": {"name": "sign"}}]
named += [{"quietbit.mechanism": "gaussian", "quietbit.mechanism.name": "sign"}]
named += [{"quietbit.mechanism.name": "sign", "quietbit.mechanism": "gaussian"}]
refused = 0
for more in ({}, sums, answers):
    for name in named:
        evaluates(config | more | name)
        try:
            plan_of(config | more | name, ("gaussian", "imvu"))
        except NotAllowed as error:
            assert error.public.detail == "mechanisms"
            refused += 1
plan_of(config | sums | {"quietbit.mechanism": "imvu"}, ("gaussian", "imvu"))
loaded = [name for name in sys.modules if name.startswith("quietbit_lab")]
assert not loaded, loaded
assert refused == 3 * len(named)
plan_of(config | {"quietbit.mechanism": "sign"})
assert "quietbit_lab.baseline.noise" in sys.modules
"""


def test_a_run_config_imports_no_family_that_the_policy_does_not_list():
    """A server's config was read first, and imported any plug-in of the node; sums imported all."""
    pytest.importorskip("quietbit_lab", reason="needs an installed plug-in")
    subprocess.run([sys.executable, "-c", PLUG_IN], check=True, timeout=120)


def test_an_engine_imports_no_family_that_the_policy_does_not_list(tmp_path):
    place = context(
        11,
        0,
        CONFIG | {"quietbit.mechanism": "sign", "quietbit.evaluate.epsilon": 0.5},
        quietbit_policy=write_policy(tmp_path, mechanisms=["imvu"], evaluate=1.0),
    )
    for kind in ("train", "evaluate"):
        message = asked(1)
        message.metadata.message_type = kind
        reply = gated()(message, place, app(np.zeros(DIMENSION)))
        assert reply.error.reason == f"{DECLINED}{NOT_LISTED.to_text()}"
    assert books(tmp_path).releases == 0
