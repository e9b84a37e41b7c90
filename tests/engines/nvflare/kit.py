"""A server and sites of NVFlare's own classes, without its network: tasks and results are carried
by the test.

Every message is serialised and read again on its way, as NVFlare does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.utils.fl_context_utils import gen_new_peer_ctx
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.apis.workspace import Workspace
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor
from nvflare.client import api as client_api
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils import fobs
from nvflare.private.fed.client.client_run_manager import ClientRunManager
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter
from nvflare.private.fed.client.command_agent import CommandAgent
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientRunManager
from nvflare.private.privacy_manager import Scope

from federation.node.makers import write_policy
from quietbit.nvflare import LocalPrivacy, PrivateReceiver, PrivateUplink

flare_decomposers.register()
common_decomposers.register()
if (
    find_spec("torch") is not None
):  # as a process with a torch model does, before it serialises anything
    fobs.register(import_module("nvflare.app_opt.pt.decomposers").TensorDecomposer)

JOB = "6f2d0c0e-8a3b-4a5e-9f57-0b1a2c3d4e5f"
CONFIG = {
    "quietbit.mechanism": "imvu",
    "quietbit.clip": 1.0,
    "quietbit.epsilon": 20.0,
    "quietbit.adjacency": "replace-one",
    "quietbit.releases": 4,
}
NEARLY_EXACT = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 1.0,
    "quietbit.mechanism.noise-multiplier": 0.01,
    "quietbit.epsilon": 1e7,
    "quietbit.adjacency": "replace-one",
}
UPLINK = "quietbit.nvflare.client.PrivateUplink"
GIVEN_UP: list[object] = []  # the interfaces of scripts that did not come back
CELLS = itertools.count()  # NVFlare knows every cell of a process by its name
SHAPES = {"weight": (5, 7), "bias": (7,)}
DIMENSION = 42
SECRET = 12345.6789  # what must never leave, as a number and as a word
SECRETS = (
    np.float32(SECRET).tobytes(),
    np.float64(SECRET).tobytes(),
    np.float64(SECRET).tobytes()[::-1],
    b"SECRET",
)


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def flat(arrays):
    """The arrays of a model, or a difference of it, as one vector."""
    return np.concatenate([arrays[name].reshape(-1) for name in SHAPES])


def carried(message):
    """The same message after its way over the wire."""
    return fobs.loads(fobs.dumps(message))


def secrets_in(message) -> list[bytes]:
    """The secrets that a message holds as NVFlare sends it."""
    sent = fobs.dumps(message)
    return [secret for secret in SECRETS if secret in sent]


class App(Executor):
    """An executor that does as it is told, and counts."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer, self.calls = answer, 0

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.calls += 1
        return self.answer(task_name, shareable, fl_ctx)


def trained(step=0.01, kind=DataKind.WEIGHTS, **meta):
    """An app that adds a number to every weight."""

    def answer(task_name, shareable, fl_ctx):
        arrays = shareable["DXO"]["data"]
        base = {
            name: value if kind == DataKind.WEIGHTS else 0 * value for name, value in arrays.items()
        }
        return DXO(
            kind, data={name: value + np.float32(step) for name, value in base.items()}, meta=meta
        ).to_shareable()

    return answer


def says(make):
    """An app that answers with what a function makes."""
    return lambda task_name, shareable, fl_ctx: make()


def fails(error):
    """An app that raises."""

    def answer(task_name, shareable, fl_ctx):
        raise error

    return answer


def raw(kind=DataKind.WEIGHTS, value=SECRET, **shapes):
    """Weights as they are."""
    arrays = {name: np.full(shape, value, np.float32) for name, shape in (shapes or SHAPES).items()}
    return DXO(kind, data=arrays).to_shareable()


def marked(found, code=ReturnCode.OK):
    """The same with secrets around its data."""
    found.set_header("SECRET", SECRET)
    found.set_return_code(code)
    found["SECRET"] = raw()["DXO"]
    return found


def in_place(task_name, shareable, fl_ctx):
    """An app that writes into what came, and answers with that."""
    shareable.add_cookie("SECRET", SECRET)
    for array in shareable["DXO"]["data"].values():
        array[...] = SECRET
    return shareable


# Whatever an app may answer with; of what failed, zero is released.
LEARNT = {
    "weights": says(raw),
    "difference": says(lambda: raw(DataKind.WEIGHT_DIFF)),
    "in place": in_place,
    "meta": trained(
        1.0, NUM_STEPS_CURRENT_ROUND=SECRET, SECRET=SECRET, initial_metrics={"loss": SECRET}
    ),
    "headers": says(lambda: marked(raw())),
}
FAILED = {
    "metrics": says(lambda: DXO(DataKind.METRICS, data={"SECRET": SECRET}).to_shareable()),
    "collection": says(lambda: DXO(DataKind.COLLECTION, data={"a": raw()}).to_shareable()),
    "words": says(lambda: DXO(DataKind.APP_DEFINED, data="SECRET").to_shareable()),
    "no content": says(Shareable),
    "no kind": says(lambda: Shareable({"SECRET": SECRET})),
    "not ok": says(lambda: marked(raw(), ReturnCode.EXECUTION_EXCEPTION)),
    "an odd code": says(lambda: marked(raw(), "SECRET")),
    "other shapes": says(lambda: raw(weight=3, bias=3)),
    "other names": says(lambda: raw(weight=(5, 7), SECRET=7)),
    "NaN": says(lambda: raw(value=np.nan)),
    "infinity": says(lambda: raw(value=np.inf)),
    "text": says(
        lambda: DXO(DataKind.WEIGHTS, data={"weight": "SECRET", "bias": SECRET}).to_shareable()
    ),
    "none": says(lambda: None),
    "a dict": says(lambda: {"SECRET": SECRET}),
    "value error": fails(ValueError(f"SECRET {SECRET}")),
    "unsafe job": fails(UnsafeJobError("SECRET")),
    "exit": fails(SystemExit("SECRET")),
    "cancelled": fails(asyncio.CancelledError("SECRET")),
    "panic": fails(type("PanicException", (BaseException,), {})("SECRET")),
    "interrupt": fails(KeyboardInterrupt("SECRET")),
}


class SiteEngine(ClientRunManager):
    """The engine of a client's process: NVFlare's own cell and agents, whose messages end where a
    socket begins.
    """

    def __init__(self, name, context):
        self.context = context
        client = SimpleNamespace(client_args={"fqsn": name, "is_leaf": True}, client_name=name)
        client.extract_shareable = lambda found, fl_ctx: found
        client.push_results = self._push
        super().__init__(name, JOB, SimpleNamespace(), client, {}, [])
        self.sent, self.results = [], []
        self.aux_runner._send_to_cell = lambda **sent: self._note(sent)
        self.aux_runner._send_multi_requests = lambda **sent: self._note(sent)
        self.on_the_wire: list[Message] = []
        self.cell = Cell(
            fqcn=f"{name}.{JOB}-{next(CELLS)}",
            root_url="tcp://localhost:1",
            secure=False,
            credentials={},
            create_internal_listener=False,
            parent_url=None,
        )
        self.cell.core_cell.communicator.send = lambda endpoint, app_id, message: (
            self.on_the_wire.append(message)
        )
        client.cell, client.status = self.cell, 2
        NetAgent(self.cell)
        with self.new_context() as fl_ctx:
            CommandAgent(client).start(fl_ctx)

    def _note(self, sent):
        self.sent.append({**sent, "moment": time.time()})
        return {"server": make_reply(ReturnCode.OK)}

    def _push(self, result, fl_ctx, timeout):
        result.set_peer_context(gen_new_peer_ctx(fl_ctx))  # as NVFlare's communicator does
        self.results.append(result)
        return CellReturnCode.OK

    def create_job_processing_context_properties(self, workspace, job_id):
        return self.context


class SimulatedEngine(SiteEngine, SimulatorClientRunManager):
    """The same in NVFlare's simulator."""


class Site:
    """A client's process: runner, engine, filters and an app."""

    def __init__(
        self,
        app,
        name="site-1",
        *,
        simulated=True,
        filters=None,
        tasks=("train",),
        scope=None,
        properties=None,
        started=True,
        **rules,
    ):
        self.app, self.name = app if isinstance(app, Executor) else App(app), name
        chains = {FilterChainType.TASK_DATA_CHAIN: [], FilterChainType.TASK_RESULT_CHAIN: []}
        made = filters or [PrivateUplink(simulation=simulated, **rules) for _ in chains]
        for (chain, members), member in zip(chains.items(), made, strict=True):
            if member is not None:
                member.set_prop(FilterContextKey.CHAIN_TYPE, chain)
                members.append(member)
        data, results = chains.values()
        router = TaskRouter()
        router.add_executor(["*"], self.app)
        config = ClientRunnerConfig(
            router,
            {f"{task}{FilterKey.DELIMITER}{FilterKey.IN}": data for task in tasks},
            {f"{task}{FilterKey.DELIMITER}{FilterKey.OUT}": results for task in tasks},
            handlers=[*data, *results],
        )
        owner = {FLContextKey.SCOPE_PROPERTIES: properties, FLContextKey.SCOPE_OBJECT: scope}
        self.engine = (SimulatedEngine if simulated else SiteEngine)(name, owner)
        for handler in config.handlers:
            self.engine.add_handler(handler)
        self.runner = ClientRunner({}, config, JOB, self.engine)
        self.engine.new_context().set_prop(FLContextKey.RUNNER, self.runner, private=True)
        if started:
            self.starts()

    def starts(self, event="_about_to_start_run"):
        """Fire an event of the run's beginning, in a context that the run has."""
        self.engine.fire_event(event, self.engine.new_context())
        return self

    def does(self, task):
        """Hand a task over, as the server would; the result as it arrives, with the context that
        goes with it.
        """
        scripts_are_back()
        name, fl_ctx = task.get_header(ReservedHeaderKey.TASK_NAME), self.engine.new_context()
        fl_ctx.set_peer_context(FLContextManager(identity_name="server", job_id=JOB).new_context())
        self.engine.client.fetch_task = lambda fl_ctx, timeout: (True, name, carried(task))
        self.runner.fetch_and_run_one_task(fl_ctx)
        return carried(self.engine.results.pop())

    def is_pushed(self, task):
        """The same for a task that the server does not wait for the client to fetch."""
        fl_ctx, request = self.engine.new_context(), carried(task)
        peer = FLContextManager(identity_name="server", job_id=JOB).new_context()
        request.set_peer_props(peer.get_all_public_props())
        reply = self.engine.dispatch(ReservedTopic.DO_TASK, request, fl_ctx)
        reply.set_peer_context(gen_new_peer_ctx(fl_ctx))  # as the engine does when it sends
        return carried(reply)

    def asked(self, channel, topic, payload=None, origin="server", via="server", **headers):
        """A request as it comes out of a socket; the messages that this process puts on its own,
        decoded.
        """
        core, before = self.engine.cell.core_cell, len(self.engine.on_the_wire)
        head = {
            MessageHeaderKey.CHANNEL: channel,
            MessageHeaderKey.TOPIC: topic,
            MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.FROM_CELL: via,
            MessageHeaderKey.TO_CELL: core.get_fqcn(),
            MessageHeaderKey.DESTINATION: core.get_fqcn(),
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.REQ_ID: "request",
            MessageHeaderKey.REPLY_EXPECTED: True,
        }
        core.process_message(Endpoint(via), None, 1, Message({**head, **headers}, payload))
        return self.engine.on_the_wire[before:]


def scripts_are_back(seconds=3.0):
    """Wait until scripts have left `flare.send`: NVFlare forgets a model that comes before.

    Who is not back by then has failed, and is waited for once.
    """
    end = time.monotonic() + seconds
    for context in client_api.context_dict.values():
        while getattr(context.api, "fl_model", None) is not None and context.api not in GIVEN_UP:
            time.sleep(0.01)
            if time.monotonic() > end:
                GIVEN_UP.append(context.api)


def script_site(tmp_path, script, **options) -> Site:
    """A site with a script, run by NVFlare's own executor."""
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    (tmp_path / "train.py").write_text(script)
    client_api.context_dict.clear()  # what a process before this one has not
    site = Site(
        ClientAPIExecutor("in_process", task_script_path=str(tmp_path / "train.py")), **options
    )
    with site.engine.new_context() as fl_ctx:
        fl_ctx.set_prop(
            FLContextKey.WORKSPACE_OBJECT,
            Workspace(str(tmp_path), "site-1"),
            private=True,
            sticky=True,
        )
        fl_ctx.set_prop(FLContextKey.CURRENT_JOB_ID, JOB, private=False, sticky=True)
    site.engine.add_handler(site.app)
    return site.starts("_start_run")


def line_site(app, folder, line, **options) -> Site:
    """A site whose job has one line of quietbit's."""
    filters = (None, LocalPrivacy(**line))
    made = Site(app, filters=filters, simulated=False, started=False, **options)
    for place in ("local", "startup", JOB):
        (folder / place).mkdir(exist_ok=True)
    made.engine.workspace = Workspace(str(folder), "site-1")
    return made.starts()


def owned(folder, **rules):
    """Properties of a scope that name an owner's policy."""
    return {"quietbit.policy": write_policy(folder, **{"epsilon": 1e6, **rules})}


def privacy(policy):
    """The `privacy.json` of the how-to."""
    filters = [{"path": UPLINK, "direction": "inout"}]
    return {
        "scopes": [
            {
                "name": "private",
                "properties": {"quietbit.policy": policy},
                "task_data_filters": filters,
                "task_result_filters": filters,
            }
        ],
        "default_scope": "private",
        "components": [{"id": "quietbit", "path": UPLINK}],
    }


class Engine:
    """The server's, as far as filters look at it."""

    def __init__(self, folder=None):
        self.workspace = SimpleNamespace(get_run_dir=lambda job: str(folder))
        self.manager = FLContextManager(engine=self, identity_name="server", job_id=JOB)
        self.panics = []

    def get_workspace(self):
        return self.workspace

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in ("site-1", "site-2")]

    def fire_event(self, event_type, fl_ctx):
        self.panics.append(event_type)


class Server:
    """The server's two filters, each built from the same arguments as NVFlare builds them from a
    job.
    """

    def __init__(self, config=CONFIG, folder=None, **more):
        self.engine = Engine(folder)
        self.data, self.results = (
            PrivateReceiver(dict(config), **more),
            PrivateReceiver(dict(config), **more),
        )
        self.data.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_DATA_CHAIN)
        self.results.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_RESULT_CHAIN)

    def context(self, client, task, name="train") -> FLContext:
        fl_ctx = self.engine.manager.new_context()
        peer = FLContextManager(identity_name=client, job_id=JOB).new_context()
        fl_ctx.set_peer_context(peer)
        fl_ctx.set_prop(FLContextKey.TASK_ID, task, private=True, sticky=False)
        fl_ctx.set_prop(FLContextKey.TASK_NAME, name, private=True, sticky=False)
        return fl_ctx

    def asks(
        self,
        client="site-1",
        number=0,
        arrays=None,
        name="train",
        kind=DataKind.WEIGHTS,
        owner=None,
    ):
        """The task that a client gets in a round, or about the model of an ``owner``."""
        task = DXO(kind, data=weights() if arrays is None else arrays).to_shareable()
        task.set_header(AppConstants.CURRENT_ROUND, number)
        if owner is not None:
            task.set_header(AppConstants.MODEL_OWNER, owner)
            task.add_cookie(AppConstants.MODEL_OWNER, owner)
        task.set_header(ReservedHeaderKey.TASK_NAME, name)
        task.set_header(ReservedHeaderKey.TASK_ID, f"{client}/{number}")
        task.add_cookie(AppConstants.CONTRIBUTION_ROUND, number)
        fl_ctx, table = (
            self.context(client, f"{client}/{number}", name),
            {f"{name}/out": [self.data]},
        )
        return apply_filters(Scope.TASK_DATA_FILTERS_NAME, task, fl_ctx, table, name, FilterKey.OUT)

    def takes(self, result, client="site-1", number=0, sender=None, name="train"):
        """What the workflow sees of a result that came for the task of ``client``."""
        fl_ctx, table = (
            self.context(sender or client, f"{client}/{number}", name),
            {f"{name}/in": [self.results]},
        )
        return apply_filters(
            Scope.TASK_RESULT_FILTERS_NAME, result, fl_ctx, table, name, FilterKey.IN
        )

    def hears(self, event, **props):
        """Both filters hear an event of the workflow."""
        fl_ctx = self.context("site-1", "none")
        for key, value in props.items():
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        for one in (self.data, self.results):
            one.handle_event(event, fl_ctx)

    def report(self, folder):
        """The file that is written at the end."""
        self.hears("_end_run")
        return json.loads((folder / "quietbit-report.json").read_text())


def content(reply: Shareable) -> dict:
    """What a reply holds besides its headers."""
    return {key: value for key, value in reply.items() if key != ReservedHeaderKey.HEADERS}


def release_of(reply: Shareable) -> bytes:
    record = content(reply)["quietbit"]
    assert set(record) == {"release"}
    return record["release"]


def public_names(reply: Shareable) -> set[str]:
    """Names of the context's properties that travel with a reply."""
    known = {ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME, ReservedKey.FQSN, ReservedKey.IS_LEAF}
    return set(reply.get_peer_context().props) - known
