"""What people read says what it means in the field's words: turns of phrase that stopped readers do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READ = [
    ROOT / "README.md",
    *(
        path
        for folder in ("src", "packages", "docs")
        for path in sorted((ROOT / folder).rglob("*"))
    ),
]
KINDS = {".md", ".py", ".pyi", ".js", ".html"}
THINGS = (
    "archive|array|axis|ball|bound|cap|cipher|cost|curve|design|dict|dtype|file|float|frame|gradient|int|integer|"
    "keeper|key|law|list|mechanism|model|number|parameter|part|path|payload|plan|policy|profile|socket|strategy|table|"
    "tensor|terminal|vector|word"
)
BANNED = {
    "say 'unless given'": r"unless said",
    "say 'per client per round'": r"\ba (?:client|node|site) and (?:a )?round\b",
    "say 'bytes per ...'": r"\b(?:bytes|bits) a (?:client|round|node|release)\b(?! sends)",
    "say 'is not a ...'": rf"(?<!there )(?<!there's )\b(?:is|are|was|were) no (?:valid )?(?:{THINGS})s?\b",
    "name the number": r"\bso many (?!that\b)",
    "say 'Return the totals', 'Results'": r"\bwhat (?:it|they|that) (?:amounts?|comes?) to\b",
    "say 'at least 1-D'": r"must be an array with an axis",
    "say 'expected a Mechanism, got ...'": r"must be a mechanism\b",
    "say 'contiguous'": r"\bbytes in a row\b",
    "say what was modified": r"between two looks",
    "say 'cannot be combined with'": r"named where bits or design are",
    "say 'a bare curve; expected ...'": r"a curve without words",
    "say 'not selected on the test set'": r"nobody's luck",
    "say how an update is sent": r"nothing is said about",
    "say 'abandon'": r"have the sum of a run left",
    "use the function's name": r"\b(?:nearest_that_holds|whole_number|solve_anew)\b",
}


def found_in(text: str) -> list[tuple[str, str]]:
    """What is banned in a text, whatever its line ends are, and what to write in its place."""
    plain = re.sub(r"[\s#]+", " ", text)
    return [
        (plain[max(0, hit.start() - 40) : hit.end() + 20], remedy)
        for remedy, turn in BANNED.items()
        for hit in re.finditer(turn, plain, re.IGNORECASE)
    ]


def test_no_banned_turn_of_phrase_is_left():
    files = [path for path in READ if path.suffix in KINDS and "__pycache__" not in path.parts]
    assert len(files) > 200
    wrong = {
        str(path.relative_to(ROOT)): hits
        for path in files
        if (hits := found_in(path.read_text("utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "text",
    [
        "all unless\n    said",
        "80 bytes a client\n# and round",
        "80 a client and round",
        "2 arrays are no parameters",
        "a value that is no number",
        "What it amounts to.",
        "at most so many bytes",
        "## What they come to",
        "is no valid payload",
        "bytes a round",
    ],
)
def test_a_banned_turn_is_noticed(text):
    assert found_in(text)


def test_plain_english_is_not():
    text = "There is no bound. It is no longer than that, so many that none fits, a client and its round."
    assert found_in(text) == []
