"""Models of runs that a node keeps in a folder: the last runs', whole, whatever happens."""

import os
import signal
import subprocess
import sys
import time

from quietbit.node.stores import MOST_RUNS, ModelFolder


def test_a_folder_keeps_the_models_of_the_last_runs(tmp_path):
    folder = ModelFolder(tmp_path)
    for run in range(MOST_RUNS + 2):
        for name in ("model", "subspace"):
            folder[f"{run}.{name}"] = bytes(10)
            os.utime(tmp_path / f"{run}.{name}.qbmodel", (run, run))
    folder["5.model"] = bytes(10)
    assert {name.partition(".")[0] for name in folder} == {
        str(run) for run in range(2, MOST_RUNS + 2)
    }
    (tmp_path / ".5.model.qbmodel.torn").write_bytes(b"half")
    folder["5.model"] = b"whole"
    assert not list(tmp_path.glob(".*torn"))
    assert folder["5.model"] == b"whole"


SAVER = """
import sys, numpy as np
from pathlib import Path
from quietbit.node.stores import ModelFolder
folder, number = ModelFolder(Path(sys.argv[1])), 0
print("ready", flush=True)
while True:
    number = (number + 1) % 256
    folder["1.state"] = bytes([number]) * 3_000_000
"""


def test_kill_9_while_saving_leaves_a_whole_model(tmp_path):
    for attempt in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            time.sleep(0.05 + 0.1 * attempt)
            process.send_signal(signal.SIGKILL)
        found = ModelFolder(tmp_path).get("1.state")
        assert found is None or (len(found) == 3_000_000 and len(set(found)) == 1)
    assert found is not None
    ModelFolder(tmp_path)["1.state"] = b"next"
    assert len(list(tmp_path.iterdir())) == 1  # and no torn copies stay behind
