"""A site that is killed between the steps of a round has counted every batch that it drew
(`kill_campaign.py`).
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from attack import disk

CAMPAIGN = Path(__file__).parent / "kill_campaign.py"


@pytest.mark.skipif(not disk.is_possible(), reason="needs a C compiler on Linux")
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.long)])
def test_every_round_that_was_begun_is_in_the_ledger(kills):
    """Noted are all rounds that were begun, and no more than one beside them per kill."""
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), str(kills)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout)
    assert (
        found["rounds"] < found["noted"] <= found["rounds"] + found["kills"] + 1
    )  # one before the first
    assert 0 < found["releases"] < found["noted"]
