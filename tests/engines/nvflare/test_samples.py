"""Samples protected over NVFlare: batches that a site's gate draws, in any thread."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind

from engines.nvflare.kit import Server, Site, flat, line_site, owned, script_site, trained, weights
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.nvflare import private_batch

LOUD = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 2.0,
    "quietbit.mechanism.noise-multiplier": 0.01,
    "quietbit.epsilon": 1e6,
    "quietbit.adjacency": "zero-out",
    "quietbit.samples.dataset-size": 10,
    "quietbit.samples.sampling-rate": 1.0,
}
LINE = {
    "epsilon": 1e9,
    "clip": 2.0,
    "releases": 2,
    "adjacency": "zero-out",
    "samples": {"dataset-size": 10, "sampling-rate": 1.0},
}


SCRIPT = """
import nvflare.client as flare
import numpy as np

from quietbit.nvflare import private_batch

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    batch = private_batch()
    rows = np.zeros((len(batch.draw(10)), 42))
    rows[:, 3] = 5.0  # longer than the clip
    rows[0, 4] = np.nan
    batch.add(rows)
    try:
        batch.add(rows)
    except ValueError as error:
        assert "at most 0" in str(error)
    else:
        raise AssertionError("more rows than were drawn")
    flare.send(received)
"""


def test_a_script_in_a_thread_of_its_own_finds_the_batch_of_its_round(tmp_path):
    site, server = script_site(tmp_path, SCRIPT), Server(LOUD)
    for number in range(2):
        seen = server.takes(site.does(server.asks(number=number)), number=number)["DXO"]["data"]
        mean = flat(seen)
        # Nine rows of length 2 (the clip), one that is not finite; over ten. Ten deviations of
        # 0.002.
        assert abs(mean[3] + 1.8) < 0.02
        assert np.abs(np.delete(mean, 3)).max() < 0.02
    site.starts("_end_run")
    with pytest.raises(InvalidParameter, match="while an app trains"):
        private_batch()


TRAINER = SCRIPT[SCRIPT.index("    batch =") : SCRIPT.index("    flare.send")]


CODE = "import numpy as np\nfrom quietbit.nvflare import private_batch\n" + textwrap.dedent(TRAINER)


def starts(task_name, shareable, fl_ctx):
    """An app that trains in a process of its own, as `external_process` starts one."""
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=120)
    return DXO(DataKind.WEIGHTS, data=weights()).to_shareable()


def simulated_site(folder):
    return Site(starts)


def owned_site(folder):
    rules = {"unit": "sample", "data_set": "ward 3", "adjacency": "zero-out", "epsilon": 1e7}
    return Site(starts, properties=owned(folder, **rules))


@pytest.mark.parametrize("make", [simulated_site, owned_site])
def test_a_trainer_in_a_process_of_its_own_finds_the_batch_of_its_round(tmp_path, make):
    server = Server(LOUD)
    seen = server.takes(make(tmp_path).does(server.asks()))["DXO"]["data"]
    assert abs(seen["weight"].reshape(-1)[3] + 1.8) < 0.02


def test_behind_the_line_it_does_too(tmp_path):
    task = Server(LOUD).asks()
    moved = flat(line_site(starts, tmp_path, LINE).does(task)["DXO"]["data"]) - flat(weights())
    assert abs(moved[3] + 1.8) < 0.02


def test_outside_a_round_a_process_finds_no_batch():
    outside = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert "while an app trains" in outside.stderr


def test_apps_that_hand_nothing_over_end_a_simulation_in_its_first_round():
    server, site = Server(LOUD), Site(trained())
    server.takes(site.does(server.asks()))
    with pytest.raises(QuietbitError, match="1 app drew no batch: call dp_sgd_step"):
        server.asks(number=1)
