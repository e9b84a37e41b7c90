"""Try an installed quietbit as a stranger would: the self-test, and the README's first example.

python supply/try_installed.py      # with the Python that quietbit was installed into
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def main() -> None:
    """Run both in an empty folder, so that nothing of the checkout is imported."""
    example = re.search(
        r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    if example is None:
        raise SystemExit("README.md has no Python example.")
    with tempfile.TemporaryDirectory() as folder:
        for words in (["-m", "quietbit", "doctor"], ["-c", example[1]]):
            subprocess.run([sys.executable, "-P", *words], cwd=folder, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
