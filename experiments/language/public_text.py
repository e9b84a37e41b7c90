"""Collect public text that is not of the clients' kind.

A Debian machine's manual pages and documentation.

    python experiments/language/public_text.py --tokenizer tokenizer.json --out public.npz

Idea     English manual pages by section, READMEs and the like (no changelogs, news or licences),
         and manual pages in seven other languages, some of them translated in part. At most one
         page of each beginning of a name; of each the first 512 tokens, or tokens 88 to 600 of a
         longer one. What a machine has depends on its packages: the results' own set had 744
         documents and 371,349 tokens.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

SECTIONS = {"man1": 96, "man5": 48, "man7": 48, "man8": 64, "man3": 48}
LANGUAGES = ("de", "fr", "es", "it", "pl", "pt_BR", "nl")
DOCUMENTS = 128
PAGES = 48
LENGTH = 512
LONGER = 600
LEAST_TOKENS = 300
LEAST_WORDS = 120
WANTED = re.compile(r"(README|\.txt|\.md|\.rst|HOWTO|FAQ|INSTALL|TODO)")
UNWANTED = re.compile(r"(?i)changelog|changes|news|history|copyright|licen|release")


def manual_page(path: str) -> str:
    """Return a manual page as plain lines."""
    command = [
        "man",
        "-P",
        "cat",
        "-E",
        "UTF-8",
        "--no-justification",
        "--no-hyphenation",
        "-l",
        path,
    ]
    setting = {**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(command, capture_output=True, env=setting, timeout=20, check=False)  # noqa: S603
    text = re.sub(".\x08", "", shown.stdout.decode("utf8", "replace"))
    return "\n".join(plain_lines(text)[1:-1])


def document(path: str) -> str:
    """Return a file of documentation as plain lines."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        return "\n".join(plain_lines(file.read(200_000).decode("utf8", "replace")))


def plain_lines(text: str) -> list[str]:
    """Return the lines that have words, each with single spaces."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def main() -> None:
    """Collect every kind, and write tokens with their offsets."""
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.tokenizer))
    rng = random.Random(7)  # noqa: S311
    kept: list[np.ndarray] = []
    kinds: list[str] = []

    def take(
        kind: str,
        paths: list[str],
        read: Callable[[str], str],
        name: Callable[[str], str],
        most: int,
    ) -> None:
        files = [
            path
            for path in paths
            if Path(path).is_file() and not Path(path).name.startswith("gcloud")
        ]
        rng.shuffle(files)
        seen: set[str] = set()
        for path in files:
            if len(seen) == most:
                return
            text = "" if name(path) in seen else read(path)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) < LEAST_TOKENS or len(text.split()) < LEAST_WORDS:
                continue
            seen.add(name(path))
            part = ids[LONGER - LENGTH : LONGER] if len(ids) >= LONGER else ids[:LENGTH]
            kept.append(np.array(part, dtype=np.uint16))
            kinds.append(kind)

    for section, most in SECTIONS.items():
        take(section, glob.glob(f"/usr/share/man/{section}/*"), manual_page, beginning, most)
    files = glob.glob("/usr/share/doc/*/*") + glob.glob("/usr/share/doc/*/*/*")
    files = [path for path in files if WANTED.search(Path(path).name) and not UNWANTED.search(path)]
    take("documentation", files, document, package, DOCUMENTS)
    for language in LANGUAGES:
        take(language, glob.glob(f"/usr/share/man/{language}/*/*"), manual_page, beginning, PAGES)
    offsets = np.cumsum([0] + [part.size for part in kept])
    np.savez_compressed(given.out, ids=np.concatenate(kept), offsets=offsets, kind=np.array(kinds))
    print(f"{len(kept)} documents, {offsets[-1]:,} tokens")


def beginning(path: str) -> str:
    """Return the first letters of a page's name."""
    return Path(path).name.split(".")[0][:6]


def package(path: str) -> str:
    """Return the package that a file belongs to."""
    return path.split("/")[4]


if __name__ == "__main__":
    main()
