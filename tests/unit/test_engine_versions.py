"""What is changed in an engine, or counted on without being public there: a new version is read before it is used."""

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
    """Read what differs, see that `patches.py` still says the truth about it, then write down its new digest."""
    package = {"flower": "flwr", "nvflare": "nvflare"}[engine]
    pytest.importorskip(package, reason=f"needs the {engine} extra")
    patches = importlib.import_module(f"quietbit.{engine}.patches")
    importlib.import_module(f"quietbit.{engine}.client")  # changes what it changes
    digests = {place: digest_of(place) for place in patches.CHECKED}
    assert digests == patches.CHECKED, f"{package} {version(package)}, read in {patches.VERSION}"
    assert version(package) == patches.VERSION
