"""Shared by every test: a private cache, and the same examples on every change.

HYPOTHESIS_PROFILE=fresh draws new examples, for nightly runs.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell's background jobs ignore Ctrl-C, and so would every process of the tests that try it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
