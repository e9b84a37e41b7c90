"""Write the software bill of materials that a wheel carries.

CycloneDX 1.6, as JSON, in its ``.dist-info/sboms``.

Idea     the build hook calls this. It lists what the wheel asks for, pinned as in
         `supply/locks/base.txt`, and the C sources of the kernel with their digests. Nothing
         depends on the machine or the moment, so that two builds are equal byte by byte; a time is
         given only where SOURCE_DATE_EPOCH says one. Extras are in the other locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["NAME", "bill", "locked", "write"]

NAME = "quietbit.cdx.json"
LOCK = Path("supply", "locks", "base.txt")
NATIVE = Path("src", "quietbit", "kernel", "c")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
SPACE = uuid.UUID(
    "6f1b8f9e-1d6c-5b0a-9a54-3f0f6f0f8a11"
)  # of serial numbers: any constant would do


def locked(text: str) -> dict[str, str]:
    """Return the packages of a lock and their versions."""
    return dict(PINNED.findall(text))


def bill(root: Path, name: str, version: str, requirements: Iterable[str]) -> dict[str, Any]:
    """Return the bill of a project in ``root`` that asks for these requirements."""
    lock = (root / LOCK).read_text(encoding="utf-8")
    packages = locked(lock)
    own = f"pkg:pypi/{name}@{version}"
    references = {
        package: f"pkg:pypi/{package}@{pinned}" for package, pinned in sorted(packages.items())
    }
    direct = sorted(references[_name(line)] for line in requirements)
    components: list[dict[str, Any]] = [
        {
            "type": "library",
            "bom-ref": reference,
            "name": package,
            "version": packages[package],
            "purl": reference,
        }
        for package, reference in references.items()
    ]
    components += [_source(root, path) for path in sorted((root / NATIVE).glob("*.[ch]"))]
    metadata: dict[str, Any] = {
        "component": {
            "type": "library",
            "bom-ref": own,
            "name": name,
            "version": version,
            "purl": own,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        },
        "properties": [
            {"name": "quietbit:lock:sha256", "value": hashlib.sha256(lock.encode()).hexdigest()}
        ],
    }
    if os.environ.get("SOURCE_DATE_EPOCH"):
        moment = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
        metadata["timestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    content = {
        "metadata": metadata,
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": direct}],
    }
    serial = uuid.uuid5(SPACE, json.dumps(content, sort_keys=True))
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return {**head, **content}


def write(folder: Path, root: Path, name: str, version: str, requirements: Iterable[str]) -> Path:
    """Write the bill into a folder and return where it lies."""
    path = folder / NAME
    text = json.dumps(bill(root, name, version, requirements), indent=1) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def _name(requirement: str) -> str:
    """Return the package of a requirement, as locks spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} names no package")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _source(root: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(root / "src").as_posix()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "file",
        "bom-ref": name,
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
