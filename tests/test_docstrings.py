"""The examples in docstrings are run: what they print is what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "src", ROOT / "packages" / "lab" / "src")
WITH_EXAMPLES = sorted(
    path
    for folder in SOURCES
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def name(path):
    folder = next(folder for folder in SOURCES if path.is_relative_to(folder))
    return ".".join(path.relative_to(folder).with_suffix("").parts)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name)
def test_examples_print_what_they_say(path):
    found = doctest.testmod(import_module(name(path)))
    assert found.attempted > 0
    assert found.failed == 0  # what was printed instead is in the captured output
