"""Shared by every test: a private cache, and the same examples on every change.

HYPOTHESIS_PROFILE=fresh draws new examples, for nightly runs.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
