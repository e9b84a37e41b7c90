"""The page "A hospital's afternoon": its commands, run in a folder of their own, in the order of
the page.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs the nvflare extra")
pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")
pytest.importorskip("torch", reason="needs quietbit-lab: pip install ./packages/lab")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    " " in sys.prefix, reason="NVFlare's simulator starts no site from a path with a space"
)
PAGE = ROOT / "docs" / "tutorial" / "hospitals-afternoon.md"
ELSEWHERE = ("pip ", "nvflare ")  # what changes the machine, or needs a server
RUN = "import sys; from quietbit.cli.main import main; sys.exit(main(sys.argv[1:]))"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    blocks = [
        block.replace("\\\n", " ")
        for language, block in BLOCK.findall(text)
        if language in ("sh", "bash")
    ]
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if not line.startswith(ELSEWHERE)]


@pytest.mark.long
def test_the_afternoons_commands_run_and_the_report_has_the_epsilon_of_a_patient(tmp_path):
    """The policy is named in the site's file as the page says; everything else is typed as it is
    printed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "local").mkdir()
    privacy = next(
        block
        for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8"))
        if language == "json"
    )
    named = json.loads(privacy.replace("/var/lib/quietbit", str(tmp_path)))
    (tmp_path / "local" / "privacy.json").write_text(json.dumps(named))
    (tmp_path / "local" / "resources.json").write_text(json.dumps({"allow_log_streaming": False}))
    own = {"python": [sys.executable], "quietbit": [sys.executable, "-c", RUN]}
    said, typed = {}, commands()
    assert [words[1:3] for words in typed if words[0] == "quietbit"] == [
        ["doctor"],
        ["node", "init"],
        ["node", "check"],
        ["node", "status"],
    ]
    for words in typed:
        if words[1] == "doctor":
            continue  # has tests of its own
        result = subprocess.run(
            [*own[words[0]], *words[1:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        assert result.returncode == 0, (words, result.stdout[-3000:], result.stderr[-3000:])
        said.setdefault(" ".join(words[:3]) if words[0] == "quietbit" else "study", result.stdout)
    report = json.loads(
        (tmp_path / "patients-output/patients/server/simulate_job/quietbit-report.json").read_text()
    )
    guarantee = report["guarantee"]
    assert (guarantee["unit"], guarantee["adjacency"], guarantee["delta"]) == (
        "sample",
        "zero-out",
        1e-5,
    )
    assert 3.5 < guarantee["epsilon_upper"] <= 4.0
    assert [entry["answered"] for entry in report["rounds"]] == [3] * 4
    run = said["study"]
    assert "for one sample (zero-out adjacency" in run
    # 0.95 when the page was written; five deviations of a binomial of 119 below that, and noise of
    # its own.
    assert float(re.search(r"accuracy on test patients: ([\d.]+)", run)[1]) > 0.8
    assert "anything unpriced would leave   no" in said["quietbit node check"]
    status = said["quietbit node status"]
    assert re.search(r"adjacency +zero-out", status)
    assert re.search(r"unit +sample", status)
    assert re.search(r"data set +biopsies", status)
