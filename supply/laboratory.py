"""Print a digest of the laboratory, of its tests and of what they import of the library.

`make test` leaves the laboratory's tests out while this is what they passed with last time
(`.venv/.laboratory`). A fresh checkout has no such file, and runs them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINES = ("flower", "nvflare", "node")  # folders of the library that the laboratory has no use for
NEEDED = ("src/quietbit", "packages/lab", "tests/core", "tests/lab", "experiments")
SETTINGS = ("pyproject.toml", "constraints.txt", "tests/conftest.py", "tests/test_docs.py")


def sources() -> Iterator[Path]:
    """Yield every file that the laboratory's tests may depend on, in a fixed order."""
    for folder in NEEDED:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT / folder).parts
            is_engine = folder == "src/quietbit" and parts[0] in ENGINES
            is_made = "__pycache__" in parts or path.name.startswith("_quietbit-")
            if path.is_file() and not is_made and not is_engine:
                yield path
    for name in SETTINGS:
        yield ROOT / name


def main() -> None:
    """Print the digest."""
    digest = hashlib.sha256()
    for path in sources():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {content}\n".encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
