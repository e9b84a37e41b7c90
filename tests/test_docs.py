"""What the documentation says is run: Python and shell examples, links, and every row of the table of claims."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import struct
from pathlib import Path

import pytest

from quietbit.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CLAIMS = ROOT / "docs" / "theory" / "claims.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (.+) \| `(quietbit\.[\w.]+)` \| `(tests/[\w/]+\.py)::(\w+)` \|$")


# What an example may take as given: the wire format is read from a real payload.
GIVEN = {
    "docs/reference/wire_format.md": {
        "struct": struct,
        "data": (ROOT / "tests" / "golden" / "payloads" / "v1_imvu_1bit.bin").read_bytes(),
    },
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(block: str) -> list[list[str]]:
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("quietbit ")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_examples_run(page, tmp_path, monkeypatch):
    """In the order of the page, in one folder and one namespace."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = dict(GIVEN.get(name(page), {}))
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, name(page), "exec"), names)  # noqa: S102 - our own documentation
        elif language == "sh":
            for words in commands(block):
                assert main(words) == 0, words


def test_the_first_pages_have_examples():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    languages = [language for language, _ in BLOCK.findall(text)]
    assert languages.count("python") == 1
    assert "make demo" in text[:1200]
    assert "make test" in text[:1200]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def claims() -> list[tuple[str, str, str, str]]:
    lines = CLAIMS.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|") and not line.startswith(("| Claim", "|---"))]
    found = [ROW.match(line) for line in table]
    assert all(found), [line for line, match in zip(table, found, strict=True) if not match]
    return [match.groups() for match in found if match]  # type: ignore[misc]


def points_to(function: str) -> bool:
    parts = function.split(".")
    for cut in range(len(parts), 1, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return callable(value) or isinstance(value, property)
    return False


def is_tested_by(file: str, test: str) -> bool:
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return test.startswith("test_") and any(getattr(node, "name", "") == test for node in tree.body)


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[0])
def test_every_claim_has_its_function_and_its_test(row):
    _, function, file, test = row
    assert points_to(function)
    assert is_tested_by(file, test)


def test_a_row_that_points_nowhere_is_noticed():
    assert not points_to("quietbit.privacy.fisher.nothing")
    assert not points_to("quietbit.nowhere.at_all")
    assert not is_tested_by("tests/exact/test_privacy_renyi.py", "test_nothing")
    assert not is_tested_by("tests/nowhere.py", "test_nothing")


def test_every_numbered_statement_of_the_paper_is_listed():
    text = " ".join(claim for claim, _, _, _ in claims())
    for statement in (
        *(f"Lemma {k}" for k in (1, 2, 3)),
        *(f"Theorem {k}" for k in (1, 2)),
        *(f"Definition {k}" for k in (1, 2, 3)),
        *(f"Lemma 3 ({k})" for k in ("i", "ii", "iii", "iv", "v", "vi")),
        "(rdp_conversion)",
        "(rdp_bound)",
        "(mvu_interpolation)",
        "(imvu_interpolation)",
        "Appendix, algorithm",
    ):
        assert statement in text
