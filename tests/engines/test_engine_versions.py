"""Private parts of the engines that quietbit patches or relies on: a new version needs a review."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from importlib.metadata import version
from typing import Any

import pytest


def digest_of(place: str) -> str:
    """Return the SHA-256 of the source of ``module:name`` as the engine has it."""
    module, _, names = place.partition(":")
    value: Any = importlib.import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    source = inspect.getsource(inspect.unwrap(value))
    return hashlib.sha256(source.encode("utf-8")).hexdigest()[:16]


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_what_is_counted_on_is_as_it_was_read(engine):
    """Fails on a new version: read what differs, check `patches.py`, then update the digest."""
    package = {"flower": "flwr", "nvflare": "nvflare"}[engine]
    pytest.importorskip(package, reason=f"needs the {engine} extra")
    patches = importlib.import_module(f"quietbit.{engine}.patches")
    importlib.import_module(f"quietbit.{engine}.client")  # changes what it changes
    digests = {place: digest_of(place) for place in patches.CHECKED}
    assert digests == patches.CHECKED, f"{package} {version(package)}, read in {patches.VERSION}"
    assert version(package) == patches.VERSION
