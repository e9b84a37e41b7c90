"""Swarm learning of three sites as NVFlare deploys it (POC: a server and sites in processes of
their own): a site's job is killed in a round and the job is sent again.
"""

import csv
import json
import os
import subprocess
import sys

import pytest

from engines.test_nvflare_line import MODEL, ROOT
from quietbit.node.ledger import FileLedger

pytest.importorskip("nvflare", reason="needs the nvflare extra")
pytest.importorskip("torch", reason="needs quietbit-lab: pip install ./packages/lab")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform != "linux", reason="needs Linux: its processes are found through /proc"
    ),
    pytest.mark.skipif(" " in sys.prefix, reason="NVFlare starts no site from a path with a space"),
]
ROUNDS = 2

# In its second round site-1 waits until it is killed, in the first job alone.
SITE = """
import time
from pathlib import Path

import nvflare.client as flare

flare.init()
place = Path({place!r})
number = 0
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    number += 1
    if flare.get_site_name() == "site-1" and number == 2 and not (place / "held").exists():
        (place / "held").touch()
        time.sleep(600)
    params = {{name: value + 0.125 for name, value in received.params.items()}}
    flare.send(flare.FLModel(params=params))
"""

JOB = """
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from model import Model
from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.recipe.poc_env import PocEnv

from quietbit.nvflare import LocalPrivacy

place = Path(sys.argv[1])
recipe = SwarmLearningRecipe(
    name="line", model=Model(), min_clients=3, num_rounds=2, train_script="site.py",
    key_metric=None,
)
recipe.add_client_file("model.py")
line = LocalPrivacy(epsilon=4.0, clip=10.0, releases=2, adjacency="zero-out")
recipe.add_client_output_filter(line, tasks=["train"])


def wait(happened, seconds):
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def workers(job, site):
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            if job.encode() in words and site.encode() in words and str(place).encode() in words:
                yield int(folder.name)


env = PocEnv(num_clients=3)
try:
    first = env.deploy(recipe._job)
    wait((place / "held").exists, 90)
    killed = list(workers(first, "site-1"))
    for number in killed:
        os.kill(number, signal.SIGKILL)
    kit = place / "ws" / "example_project" / "prod_00" / "admin@nvidia.com"
    session = new_secure_session("admin@nvidia.com", str(kit))
    with contextlib.suppress(Exception):  # where the server has ended it already
        session.abort_job(first)
    wait(lambda: "FINISHED" in session.get_job_meta(first)["status"], 90)
    recipe.export(str(place / "jobs"))
    second = session.submit_job(str(place / "jobs" / "line"))
    wait(lambda: "FINISHED" in session.get_job_meta(second)["status"], 120)
    ends = [session.get_job_meta(job)["status"] for job in (first, second)]
    session.close()
    found = {"jobs": [first, second], "ends": ends, "killed": killed}
    (place / "found.json").write_text(json.dumps(found))
finally:
    env.stop(clean_up=False)
"""


def test_a_job_that_was_killed_in_a_round_and_is_sent_again_spends_what_the_ledger_says(tmp_path):
    files = {"model": MODEL, "site": SITE.format(place=str(tmp_path)), "job": JOB}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "NVFLARE_POC_WORKSPACE": str(tmp_path / "ws"),
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        result = subprocess.run(
            [sys.executable, "job.py", str(tmp_path)],
            env=environment,
            stdout=log,
            stderr=log,
            timeout=400,
            cwd=tmp_path,
        )
    assert result.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["killed"]
    assert found["ends"][1] == "FINISHED:COMPLETED"
    for site in ("site-1", "site-2", "site-3"):
        home = tmp_path / "ws" / "example_project" / "prod_00" / site
        ledger = FileLedger(home / "quietbit" / "ledger", home / "quietbit" / "counter").read()
        numbers = [(noted.run, noted.round) for noted in ledger.noted]
        assert len(set(numbers)) == len(numbers)
        runs = list(dict.fromkeys(run for run, _ in numbers))
        assert len(runs) == 2
        rounds = [[number for run, number in numbers if run == one] for one in runs]
        assert rounds[1] == [1, 2]
        if site == "site-1":
            assert rounds[0] == [1, 2], "the release of the round that was killed is noted"
            assert [row["release"] for row in table(home, found["jobs"][0])] == ["1"]
        assert float(table(home, found["jobs"][1])[-1]["epsilon"]) <= 4.0


def table(home, job):
    path = home / job / "quietbit-epsilon.csv"
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
