"""Where the shared data sets are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets, or a skip that says so."""
    folder = Path(os.environ.get("QUIETBIT_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip(f"the shared data sets are not in {folder}")
    return folder
