"""The NVFlare example in NVFlare's own simulator: a process for every site, and the model that the maths says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietbit.node.settings import RunSettings
from quietbit.simulate.client_rng import seeded_client_rng
from quietbit.wire.uplink import Uplink

pytest.importorskip("nvflare", reason="needs the nvflare extra")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "nvflare-digits"
SITES, ROUNDS, SEED = 2, 2, 7


@pytest.mark.slow
def test_two_sites_train_two_rounds_and_the_model_is_the_mean_of_what_they_sent(tmp_path, monkeypatch):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    options = ["--sites", SITES, "--rounds", ROUNDS, "--seed", SEED, "--workspace", tmp_path]
    result = subprocess.run(
        [sys.executable, str(EXAMPLE / "job.py"), *map(str, options)],
        env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "accuracy on test digits: " in result.stdout
    job = tmp_path / "digits" / "server" / "simulate_job"
    report = json.loads((job / "quietbit-report.json").read_text())
    assert [entry["answered"] for entry in report["rounds"]] == [SITES, SITES]
    assert [node["node"] for node in report["nodes"]] == ["site-1", "site-2"]
    # One bit for each of 650 parameters, 64 bytes of header, 32 of frame; the rest is NVFlare's record and context.
    assert {entry["uplink_payload"] for entry in report["rounds"]} == {SITES * (82 + 64)}
    assert all(entry["uplink"] < SITES * 1200 for entry in report["rounds"])

    monkeypatch.syspath_prepend(str(EXAMPLE))
    import digits

    settings = RunSettings.from_run_config(report["settings"])
    uplink, rng = Uplink(settings.mechanism_for(650)), seeded_client_rng(SEED)
    model = digits.start()
    for number in range(ROUNDS):
        differences = []
        for site in range(SITES):
            trained = digits.train(model, digits.own_examples(site, SITES), 5, 0.5)
            update = model.astype(np.float64) - trained
            payload = uplink.send(update.reshape(-1), rng(number, site + 1))
            differences.append(-uplink.receive([payload]).astype(np.float32).reshape(model.shape))
        model = model + np.mean(differences, axis=0, dtype=np.float32)
    np.testing.assert_allclose(np.load(job / "models" / "server.npy"), model, rtol=1e-5, atol=1e-6)
