"""Divergences that take long to compute, saved beside the ledger: a node computes each once.

Idea     an account of masked sums needs some hundred Rényi divergences per mechanism, each found
         by a numerical search. A node that starts a process per message would repeat them. A
         divergence is a function of the mechanism, the terms and this code, so the file keeps the
         numbers under a digest of all three: after any change of the package, or an upgrade of
         numpy or scipy, none of the old numbers is used. The file is sealed with a MAC under the
         node's own key; one that does not verify is ignored, and everything is computed again.
Names    the file ends in .prices and its fields say "prices", as in earlier versions.
Source   HMAC: RFC 2104. The key is the one that seals a node's secrets (`quietbit.node.stores`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, final

from attrs import field, frozen

import quietbit
from quietbit._files import write_whole
from quietbit.errors import QuietbitError
from quietbit.node.stores import KEY, key_file
from quietbit.privacy.release import Divergence
from quietbit.secagg.identity import PRIVATE, read_file

__all__ = ["SavedCosts", "cost_version", "costs_beside"]

LOGGER = logging.getLogger(__name__)
FORMAT = "quietbit-prices"
SUFFIX = ".prices"
MOST_BYTES = 64 * 2**20
MOST_BOUNDS = 1024  # beyond it, the oldest are dropped
Divergences: TypeAlias = dict[str, dict[float, float]]  # by bound, then by Rényi order


@cache
def cost_version() -> str:
    """Return a digest of what costs depend on besides the mechanism: code, numpy and scipy."""
    digest = hashlib.sha256()
    package = Path(quietbit.__file__).parent
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for name in ("numpy", "scipy"):
        digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()


@final
@frozen(eq=True)
class CachedBound:
    """A Rényi bound that computes its value at each order once."""

    name: str
    bound: Divergence = field(eq=False, repr=False)
    values: dict[float, float] = field(eq=False, repr=False)
    changed: Callable[[], None] = field(eq=False, repr=False)

    def __call__(self, alpha: float) -> float:
        """Return the bound at the order ``alpha``."""
        value = self.values.get(alpha)
        if value is None:
            value = self.bound(alpha)
            self.values[alpha] = value
            self.changed()
        return value


@final
class SavedCosts:
    """The file of divergences of one ledger; `save` adds what was computed since it was read."""

    def __init__(self, path: Path, key: str) -> None:
        """Name the file and that of the node's key; `save` makes them where they are missing."""
        self._path = path
        self._key = key
        self._guard = threading.Lock()
        self._values: Divergences | None = None
        self._is_changed = False

    def cached(self, name: str, bound: Divergence) -> Divergence:
        """Return the bound with its saved values; ``name`` identifies mechanism and terms."""
        with self._guard:
            if self._values is None:
                self._values = self._read()
            values = self._values.setdefault(name, {})
        return CachedBound(name, bound, values, self._note_change)

    def save(self) -> None:
        """Write the file if something is new; where that fails, log it: only time is lost."""
        with self._guard:
            if not self._is_changed or self._values is None:
                return
            self._is_changed = False
            names = list(self._values)[-MOST_BOUNDS:]
            numbers = {
                name: {
                    order.hex(): value.hex() for order, value in list(self._values[name].items())
                }
                for name in names
                if self._values[name]
            }
        content = {"format": FORMAT, "pricing": cost_version(), "divergences": numbers}
        try:
            seal = self._seal(content, key_file(self._key))
            text = json.dumps({**content, "mac": seal}).encode("ascii")
            write_whole(self._path, lambda file: file.write(text), make_folder=False, mode=0o600)
        except QuietbitError as error:
            LOGGER.warning("quietbit: costs are not saved, and will be computed again: %s", error)

    def _note_change(self) -> None:
        self._is_changed = True

    def _read(self) -> Divergences:
        """Return the saved values; none unless this node wrote them with this code."""
        if not os.path.lexists(self._path) or not os.path.lexists(self._key):
            return {}
        try:
            key = read_file(self._key, KEY, "key", PRIVATE)
            content = json.loads(read_file(self._path, MOST_BYTES, "saved costs", PRIVATE))
            seal = str(content.pop("mac"))
            if not hmac.compare_digest(seal, self._seal(content, key)):
                raise ValueError("the file was changed")
            if content["format"] != FORMAT or content["pricing"] != cost_version():
                return {}
            return {
                name: {
                    float.fromhex(order): float.fromhex(value) for order, value in numbers.items()
                }
                for name, numbers in content["divergences"].items()
            }
        except (
            OSError,
            QuietbitError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            LOGGER.warning("quietbit: the saved costs in %s are ignored: %s", self._path, error)
            return {}

    def _seal(self, content: dict[str, Any], key: bytes) -> str:
        text = json.dumps(content, sort_keys=True).encode("ascii")
        return hmac.new(key, b"quietbit/prices/" + text, hashlib.sha256).hexdigest()


@cache
def costs_beside(ledger: Path) -> SavedCosts:
    """Return the saved costs of a ledger, once per process."""
    return SavedCosts(ledger.with_name(ledger.name + SUFFIX), f"{ledger}.key")
