"""Shared by every test: no test reads or writes the user's own cache."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETBIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
