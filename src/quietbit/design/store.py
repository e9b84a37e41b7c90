"""Designs on disk: canonical text with its SHA-256, written whole or not at all.

Idea     The file is the canonical text of the design with its identity added; reading recomputes it, so a changed or
         truncated file is refused. The cache holds one file per spec; writers race harmlessly, because each
         writes a file of its own and renames it into place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from quietbit._files import cache_folder as kept_in
from quietbit._files import write_text
from quietbit.design.spec import DesignSpec
from quietbit.design.table import FORMAT, VERSION, Design
from quietbit.errors import InvalidDesignFile, QuietbitError

__all__ = ["cache_folder", "cached", "read_design", "remember", "write_design"]

SOLVER_VERSION = 1  # raised when the solver finds better designs, so that older cached ones are left alone
MAX_BYTES = 64 * 2**20


def write_design(design: Design, path: Path) -> Path:
    """Write the file beside its final place, then rename it there."""
    content = {**json.loads(design.canonical()), "identity": design.identity()}
    text = json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"
    return write_text(path, text, make_folder=False)


def read_design(path: Path) -> Design:
    """Read and verify a design file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidDesignFile(f"{path} is not a design: it is larger than {MAX_BYTES} bytes.")
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise InvalidDesignFile(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidDesignFile(f"{path} is not a design: it is not plain text.") from error
    return parse_design(text, str(path))


def parse_design(text: str, origin: str) -> Design:
    """The design a text stands for; ``origin`` names it in a refusal."""
    content = _object(text, origin)
    stated = content.pop("identity", None)
    try:
        spec = content["spec"]
        design = Design(DesignSpec(**spec), content["probabilities"], content["alphabet"])
    except (QuietbitError, KeyError, TypeError, ValueError) as error:
        raise InvalidDesignFile(f"{origin} is not a usable design: {_reason(error)}.") from error
    if design.identity() != stated or set(content) != {
        "alphabet",
        "format",
        "probabilities",
        "spec",
        "version",
    }:
        raise InvalidDesignFile(f"{origin} was changed: its content does not match its identity {stated!r}.")
    return design


def _object(text: str, origin: str) -> dict[str, Any]:
    try:
        content = json.loads(text, parse_constant=lambda name: _not_finite(name))
    except (ValueError, RecursionError) as error:
        raise InvalidDesignFile(f"{origin} is not a design: it is not complete JSON.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidDesignFile(f"{origin} is not a design: it does not say format {FORMAT!r}.")
    if content.get("version") != VERSION:
        raise InvalidDesignFile(f"{origin} has version {content.get('version')!r}, and this library reads {VERSION}.")
    return content


def _not_finite(name: str) -> float:
    raise ValueError(name)


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")


def cache_folder() -> Path:
    """Where solved designs are kept."""
    return kept_in("designs")


def _cache_file(spec: DesignSpec) -> Path:
    key = hashlib.sha256(f"{SOLVER_VERSION}:{spec!r}".encode()).hexdigest()[:32]
    return cache_folder() / f"{key}.json"


def cached(spec: DesignSpec) -> Design | None:
    """The cached design for exactly this spec; a damaged file counts as absent."""
    path = _cache_file(spec)
    if not path.exists():
        return None
    try:
        design = read_design(path)
    except InvalidDesignFile:
        return None
    return design if design.spec == spec else None


def remember(design: Design) -> None:
    """Keep a design in the cache; a cache that cannot be written is not a reason to fail."""
    path = _cache_file(design.spec)
    with contextlib.suppress(OSError, QuietbitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_design(design, path)
