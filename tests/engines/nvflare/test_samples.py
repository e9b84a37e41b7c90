"""Samples protected over NVFlare: batches that a site's gate draws, in any thread."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
from nvflare.apis.dxo import DXO, DataKind

from engines.nvflare.kit import Server, Site, flat, owned, script_site, weights
from quietbit.errors import InvalidParameter, QuietbitError
from quietbit.nvflare import private_batch

CONFIG = {
    "quietbit.mechanism": "gaussian",
    "quietbit.clip": 2.0,
    "quietbit.epsilon": 4.0,
    "quietbit.adjacency": "zero-out",
    "quietbit.releases": 15,
    "quietbit.samples.dataset-size": 350,
    "quietbit.samples.sampling-rate": 0.25,
}
LOUD = {
    **{key: value for key, value in CONFIG.items() if key != "quietbit.releases"},
    "quietbit.mechanism.noise-multiplier": 0.01,
    "quietbit.epsilon": 1e6,
    "quietbit.samples.sampling-rate": 1.0,
    "quietbit.samples.dataset-size": 10,
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


def test_a_trainer_in_a_process_of_its_own_finds_the_batch_of_its_round(tmp_path):
    """As `external_process` starts one; outside a round it finds none, and neither does a process
    of another parent.
    """
    code = "import numpy as np\nfrom quietbit.nvflare import private_batch\n" + textwrap.dedent(
        TRAINER
    )

    def starts(task_name, shareable, fl_ctx):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
        return DXO(DataKind.WEIGHTS, data=weights()).to_shareable()

    server = Server(LOUD)
    for properties in (
        None,
        owned(tmp_path, unit="sample", data_set="ward 3", adjacency="zero-out", epsilon=1e7),
    ):
        site = Site(starts, properties=properties)
        number = int(properties is not None)
        seen = server.takes(site.does(server.asks(number=number)), number=number)["DXO"]["data"]
        assert abs(seen["weight"].reshape(-1)[3] + 1.8) < 0.02
    outside = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert "while an app trains" in outside.stderr


def test_apps_that_hand_nothing_over_end_a_simulation_in_its_first_round():
    server = Server(CONFIG)
    site = Site(lambda task, shareable, ctx: DXO(DataKind.WEIGHTS, data=weights()).to_shareable())
    server.takes(site.does(server.asks(number=0)), number=0)
    with pytest.raises(QuietbitError, match="1 app drew no batch: call dp_sgd_step"):
        server.asks(number=1)
