"""The NVFlare example in NVFlare's own simulator: a process for every site, and the model that
the maths says.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit import Plan
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.wire.uplink import Uplink

pytest.importorskip("nvflare", reason="needs the nvflare extra")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    " " in sys.prefix, reason="NVFlare's simulator starts no site from a path with a space"
)
EXAMPLE = ROOT / "examples" / "nvflare-digits"
SITES, ROUNDS, SEED = 2, 2, 7


def run_python(folder, *words):
    """Run Python in a folder, whose modules it finds."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
    )


def simulate(folder, job, *words, script, **modules):
    """Run a job with its script, and with other modules beside them."""
    for name, text in {"job": job, "client": script, **modules}.items():
        (folder / f"{name}.py").write_text(text)
    return run_python(folder, folder / "job.py", folder, *words)


def report_of(folder, job):
    """The report of a job that ran."""
    path = folder / job / "server" / "simulate_job" / "quietbit-report.json"
    return json.loads(path.read_text())


@pytest.mark.slow
def test_two_sites_train_two_rounds_and_the_model_is_the_mean_of_what_they_sent(
    tmp_path, monkeypatch
):
    options = ("--sites", SITES, "--rounds", ROUNDS, "--seed", SEED, "--workspace", tmp_path)
    result = run_python(tmp_path, EXAMPLE / "job.py", *options)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "accuracy on test digits: " in result.stdout
    report = report_of(tmp_path, "digits")
    assert [entry["answered"] for entry in report["rounds"]] == [SITES, SITES]
    assert [node["node"] for node in report["nodes"]] == ["site-1", "site-2"]
    # One bit for each of 650 parameters, 64 bytes of header, 24 of frame; the rest is NVFlare's
    # record and context.
    assert {entry["uplink_payload"] for entry in report["rounds"]} == {SITES * (82 + 64)}
    assert all(entry["uplink"] < SITES * 1200 for entry in report["rounds"])

    monkeypatch.syspath_prepend(str(EXAMPLE))
    import digits

    settings = Plan.from_run_config(report["settings"])
    uplink = Uplink(settings.mechanism_for(650), clip=settings.clip)
    rng = seeded_client_rng(SEED)
    model = digits.start()
    for number in range(ROUNDS):
        differences = []
        for site in range(SITES):
            trained = digits.train(model, digits.own_examples(site, SITES), 5, 0.5)
            update = model.astype(np.float64) - trained
            payload = uplink.send(update.reshape(-1), rng(number, site + 1))
            differences.append(-uplink.receive([payload]).astype(np.float32).reshape(model.shape))
        model = model + np.mean(differences, axis=0, dtype=np.float32)
    (saved,) = (tmp_path / "digits" / "server").rglob("server.npy")
    np.testing.assert_allclose(np.load(saved), model, rtol=1e-5, atol=1e-6)


CURIOUS = """
import json
from pathlib import Path

from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message


class Curious(FLComponent):
    # A server's component that asks the cells of the sites, after every round, for what they noted of their errors.
    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def handle_event(self, event_type, fl_ctx):
        if event_type != "_before_aggregation":
            return
        cell = fl_ctx.get_engine().get_cell()
        for topic in ("show_errors", "show_stats", "abort_nothing"):
            target = {"channel": "client_command", "topic": topic, "target": "site-1.simulate_job"}
            reply = cell.send_request(request=Message(payload={}), timeout=5.0, **target)
            line = json.dumps([topic, reply.get_header(MessageHeaderKey.RETURN_CODE), str(reply.payload)])
            with Path(self.file).open("a") as file:
                file.write(line + chr(10))
"""

JOB = """
import sys

from curious import Curious
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from quietbit.nvflare import add_privacy

workspace, private = sys.argv[1], sys.argv[2] == "private"
recipe = NumpyFedAvgRecipe(
    name="careless", model=[[0.0] * 65] * 10, min_clients=1, num_rounds=2, train_script="client.py"
)
recipe._job.to_server(Curious(file=workspace + "/replies"))
settings = {
    "quietbit.mechanism": "imvu", "quietbit.clip": 0.5, "quietbit.epsilon": 0.03, "quietbit.adjacency": "zero-out",
    "quietbit.releases": 3,
}
if private:
    add_privacy(recipe, settings, simulation=True)
recipe.execute(SimEnv(num_clients=1, workspace_root=workspace))
"""

CARELESS = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    raise ValueError("cannot train on glucose 417.25")
"""


@pytest.mark.long  # without processes: tests/engines/nvflare/test_patches.py
def test_a_server_that_asks_for_errors_gets_no_word_of_them(tmp_path):
    """Real processes and sockets: a script that fails on a patient's value, and a server that
    asks the job's cell.
    """
    result = simulate(tmp_path, JOB, "private", script=CARELESS, curious=CURIOUS)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    replies = [json.loads(line) for line in (tmp_path / "replies").read_text().splitlines()]
    assert {topic for topic, _, _ in replies} == {"show_errors", "show_stats", "abort_nothing"}
    assert {(code, payload) for _, code, payload in replies} == {("process_exception", "None")}
    report = report_of(tmp_path, "careless")
    assert [(entry["answered"], entry["crashed"]) for entry in report["rounds"]] == [(1, 1)] * 2
    # It did fail, and whoever runs the simulation is told so, with the script's own traceback.
    shown = result.stdout.split("the apps of 1 simulated nodes crashed", 1)[1]
    assert "ValueError: cannot train on glucose 417.25" in shown.split("nodes answered")[0]


BARE = """
import json
import sys
from pathlib import Path

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.utils import set_per_site_config

from quietbit.nvflare import add_privacy

recipe = NumpyFedAvgRecipe(
    name="bare", model=[[0.0] * 10] * 10, min_clients=3, num_rounds=3, train_script="client.py"
)
set_per_site_config(recipe, {f"site-{number}": {} for number in (1, 2, 3)})
settings = {
    "quietbit.mechanism": "imvu", "quietbit.clip": 1.0, "quietbit.epsilon": 8.0, "quietbit.adjacency": "zero-out",
    "quietbit.releases": 5,
}
add_privacy(recipe, settings, simulation=True)
recipe.export("jobs")
for site in sys.argv[2:]:  # what no job that add_privacy wrote is: without filters
    path = Path("jobs", "bare", f"app_{site}", "config", "config_fed_client.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"task_data_filters": [], "task_result_filters": []}))
"""

RAW = """
import nvflare.client as flare
import numpy as np

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    ((name, model),) = received.params.items()
    print("trained in round", received.current_round, flare.get_site_name())
    flare.send(flare.FLModel(params={name: model + np.float32(417.25)}, metrics={"accuracy": 417.25}))
"""


@pytest.mark.long  # without processes: tests/engines/nvflare/test_server.py
@pytest.mark.parametrize("bare", [("site-1", "site-2", "site-3"), ("site-2",)], ids=["all", "one"])
def test_sites_without_filters_are_asked_once_and_no_epsilon_is_said(tmp_path, bare):
    """In NVFlare's own processes: their trained models arrive, and come to nothing."""
    made = simulate(tmp_path, BARE, *bare, script=RAW)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
    simulator = ("-m", "nvflare.private.fed.app.simulator.simulator", tmp_path / "jobs" / "bare")
    result = run_python(tmp_path, *simulator, "-w", "workspace", "-n", 3, "-t", 3)
    said = result.stdout + result.stderr
    report = report_of(tmp_path, "workspace")
    server = tmp_path / "workspace" / "server" / "simulate_job"
    assert report["guarantee"] is None
    assert {entry["epsilon_upper"] for entry in report["nodes"]} == {None}
    assert "epsilon <=" not in said.replace("epsilon <=\n", "")  # but for the head of a column
    count = len(bare)
    promise = f"No guarantee: {count} node{'s' * (count > 1)} sent unprotected replies."
    assert promise in said
    trained = [
        line.split("trained in round ")[1].split()[:2]
        for line in said.splitlines()
        if "trained in round" in line
    ]
    rounds = {
        name: sorted(number for number, site in trained if site == name) for _, name in trained
    }
    if count == 3:
        assert rounds == {site: ["0"] for site in bare}
        assert result.returncode == 2
        ends = [line for line in said.splitlines() if f"the job ends: {promise}" in line]
        assert len(ends) == 1
        assert [entry["asked"] for entry in report["rounds"]] == [3]
    else:
        assert result.returncode == 0, said[-4000:]
        assert rounds == {"site-1": ["0", "1", "2"], "site-2": ["0"], "site-3": ["0", "1", "2"]}
        assert [entry["asked"] for entry in report["rounds"]] == [3, 2, 2]
        assert [entry["answered"] for entry in report["rounds"]] == [2, 2, 2]
        (model,) = server.rglob("server.npy")
        assert np.abs(np.load(model)).max() < 100.0
    assert "417.25" not in "".join(path.read_text() for path in server.rglob("*.json"))


REPLAYED = """
import sys

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from quietbit.nvflare import add_privacy

recipe = NumpyFedAvgRecipe(
    name="replayed", model=np.zeros((100, 1000)).tolist(), min_clients=2, num_rounds=4, train_script="client.py"
)
settings = {
    "quietbit.mechanism": "vmvu", "quietbit.clip": 1.0, "quietbit.epsilon": 60.0, "quietbit.adjacency": "zero-out",
    "quietbit.releases": 4, "quietbit.mechanism.coordinates": 1024, "quietbit.replay": True,
}
add_privacy(recipe, settings, simulation=sys.argv[2] == "simulation")
recipe.execute(SimEnv(num_clients=2, workspace_root=sys.argv[1]))
"""

STEPS = """
import hashlib

import nvflare.client as flare
import numpy as np

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    ((name, model),) = received.params.items()
    print("trained on", hashlib.sha256(np.ascontiguousarray(model).tobytes()).hexdigest(), model.dtype)
    flare.send(flare.FLModel(params={name: model + np.float32(0.001)}))
"""


@pytest.mark.long  # without processes: tests/federation/contract/test_adapters.py
def test_a_hundred_thousand_parameters_go_down_once(tmp_path):
    """Both sites train on the same bits in every round, and the saved model is what the last
    round leads to.
    """
    result = simulate(tmp_path, REPLAYED, "simulation", script=STEPS)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    report = report_of(tmp_path, "replayed")
    assert [entry["answered"] for entry in report["rounds"]] == [2] * 4
    assert [entry["resyncs"] for entry in report["rounds"]] == [0] * 4
    down = [entry["downlink"] // 2 for entry in report["rounds"]]
    print(
        "bytes of a site, down:", down, "up:", [entry["uplink"] // 2 for entry in report["rounds"]]
    )
    assert down[0] > 400_000
    assert all(size < 8_000 for size in down[1:])
    trained = [
        line.split("trained on ")[1].split()[0]
        for line in result.stdout.splitlines()
        if "trained on " in line
    ]
    assert len(trained) == 8
    assert sorted(trained.count(one) for one in set(trained)) == [2, 2, 2, 2]


@pytest.mark.long  # without processes: tests/engines/nvflare/test_server.py
def test_a_job_that_nobody_answers_fails(tmp_path):
    """Without a policy and without a simulation's rules every site declines."""
    result = simulate(tmp_path, REPLAYED, "deployed", script=STEPS)
    assert result.returncode != 0
    said = result.stdout + result.stderr
    assert re.search(
        r"2 nodes \(site-\d, site-\d\) declined: invalid-request: This node has no policy", said
    )  # who is first is chance
    assert "No node answered in 4 rounds, and the model has not changed" in said
    assert "Simulation failed with return code 2" in said


EVALUATED = """
import sys

from nvflare.app_common.np.np_model_locator import NPModelLocator
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.workflows.cross_site_model_eval import CrossSiteModelEval
from nvflare.recipe import SimEnv

from quietbit.nvflare import add_privacy

recipe = NumpyFedAvgRecipe(
    name="evaluated", model=[[0.0] * 10] * 3, min_clients=2, num_rounds=2, train_script="client.py"
)
settings = {
    "quietbit.mechanism": "imvu", "quietbit.clip": 1.0, "quietbit.epsilon": 80.0, "quietbit.adjacency": "zero-out",
    "quietbit.releases": 2, "quietbit.evaluate": {"epsilon": 15.0, "metric": "accuracy"},
}
validates = sys.argv[2] == "validates"
if validates:
    located = recipe._job.to_server(NPModelLocator())
    recipe._job.to_server(CrossSiteModelEval(model_locator_id=located, submit_model_task_name=""))
add_privacy(recipe, settings, simulation=True, validations=("validate",) if validates else ())
recipe.execute(SimEnv(num_clients=2, workspace_root=sys.argv[1]))
"""

JUDGES = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    ((name, model),) = received.params.items()
    share = 1.0 if flare.get_site_name() == "site-1" else 0.0
    flare.send(flare.FLModel(params={name: model + 0.001}, metrics={"accuracy": share}))
"""


@pytest.mark.long  # without processes: tests/engines/nvflare/test_server.py
def test_nvflares_cross_site_evaluation_gets_private_answers(tmp_path):
    """Its validation task is answered; no site is asked for its own model."""
    result = simulate(tmp_path, EVALUATED, "validates", script=JUDGES)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    report = report_of(tmp_path, "evaluated")
    assert [entry["answered"] for entry in report["rounds"]] == [2, 2]
    assert report["evaluations"]
    assert all(
        entry["model"].startswith("SRV_") and entry["answered"] == 2
        for entry in report["evaluations"]
    )
    assert {node["evaluations"] for node in report["nodes"]} == {len(report["evaluations"])}
