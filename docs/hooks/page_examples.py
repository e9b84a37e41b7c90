"""Write the Python examples of every page as modules, one for each page, for `make lint` to check their types.

    python docs/hooks/page_examples.py FOLDER

`tests/test_docs.py` runs the same blocks.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

__all__ = ["BLOCK", "PAGES", "ROOT", "name", "write"]

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (ROOT / "docs", ROOT / "packages" / "lab" / "docs")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNTYPED = {"docs/reference/wire_format.md"}  # it takes a payload as given


def name(page: Path) -> str:
    """Return how a page is called in the checkout."""
    return str(page.relative_to(ROOT))


def write(folder: Path) -> list[Path]:
    """One module for each page that has examples; nothing else stays in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = []
    for page in PAGES:
        blocks = [
            block
            for language, block in BLOCK.findall(page.read_text(encoding="utf-8"))
            if language == "python"
        ]
        if blocks and name(page) not in UNTYPED:
            written.append(folder / (re.sub(r"\W", "_", name(page)) + ".py"))
            written[-1].write_text("\n".join(blocks), encoding="utf-8")
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]))
