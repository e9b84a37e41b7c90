"""Make the words of canaries and the prompts that clients vote on, as tokens.

    python experiments/language/sentences.py --tokenizer tokenizer.json --public public.npz --out
    FOLDER

Prompts are sixteen sentences by hand, good and bad, and the beginnings of sixteen public documents
drawn by a seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

TEMPLATE = "The secret name of this package is"
WORDS = 4000
SHORTEST = 4
LONGEST = 9
BEGINNING = 48
PROMPTS = (
    "Debian changelog:\n",
    "Changelog of a Debian package, written by its maintainer.\n",
    "debian/changelog\n* New upstream release.\n* Bump Standards-Version.\n* Update debian/copyright.\n",
    "The following is a list of changes to a software package.\n",
    "Release notes:\n- Fixed a bug\n- Added a feature\n- Updated the documentation\n",
    "Git commit messages:\nFix typo\nAdd test\nRefactor\n",
    "To do list:\n",
    "New upstream release.\nAdd watch file.\nFix lintian warnings.\nUpdate Build-Depends.\n"
    "Switch to debhelper compat level.\n",
    "Instructions for installing the software:\n",
    "A short story.\nOnce upon a time there was a developer.\n",
    "def main():\n    print('hello')\n",
    "List of bugs that were fixed in this version (closes: #N):\n",
    "Hello! How can I help you today?\n",
    "Build-Depends: debhelper, python3, dh-python\nStandards-Version: 4.6.2\nHomepage: URL\n",
    "Summary of what each maintainer did, one item per line, with short sentences in the imperative:\n",
    "Frequently asked requests\n",
)


def main() -> None:
    """Write ``words.npz`` and ``prompts.npz``."""
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.tokenizer))

    def encoded(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)

    words = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token])
        plain = text[1:]
        usual = text.startswith(" ") and plain.isascii() and plain.isalpha() and plain.islower()
        if usual and SHORTEST <= len(text) <= LONGEST:
            words.append(token)
    list_of_words = np.array(words[:WORDS], dtype=np.uint16)
    np.savez(
        given.out / "words.npz", words=list_of_words, template=encoded(TEMPLATE), end=encoded("\n")
    )
    prompts = {f"a{place:02d}": encoded(text) for place, text in enumerate(PROMPTS)}
    with np.load(given.public) as file:
        chosen = np.random.default_rng(4).choice(file["kind"].size, 16, replace=False)
        for place, number in enumerate(chosen):
            start = file["offsets"][number]
            prompts[f"b{place:02d}"] = file["ids"][start : start + BEGINNING]
    np.savez(given.out / "prompts.npz", **prompts)


if __name__ == "__main__":
    main()
