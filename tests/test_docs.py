"""What the documentation says is run: Python and shell examples, links, types, and every row of
the table of claims.
"""

import ast
import importlib
import importlib.util
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import typer.main

import quietbit
import quietbit.flower
import quietbit.node
import quietbit.nvflare
from cli.test_self_test import one_kernel
from quietbit.check.law import LAWS
from quietbit.cli.app import app
from quietbit.cli.main import main

ROOT = Path(__file__).parent.parent


def hook(file):
    """A file of docs/hooks, which is no package."""
    spec = importlib.util.spec_from_file_location(file, ROOT / "docs" / "hooks" / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE_EXAMPLES = hook("page_examples")
PAGES, BLOCK, name = PAGE_EXAMPLES.PAGES, PAGE_EXAMPLES.BLOCK, PAGE_EXAMPLES.name
EVERYWHERE = sorted(
    {
        *PAGES,
        *(
            page
            for folder in ("experiments", "benchmarks", "examples")
            for page in (ROOT / folder).rglob("*.md")
        ),
    }
)
CLAIMS = (
    ROOT / "docs" / "theory" / "claims.md",
    ROOT / "packages" / "lab" / "docs" / "claims.md",
)
ROW = re.compile(r"^\| (.+) \| `(quietbit(?:_lab)?\.[\w.]+)` \| `(tests/[\w/]+\.py)::(\w+)` \|$")


# What an example may take as given: the wire format is read from a real payload.
GIVEN = {
    "docs/reference/wire_format.md": {
        "struct": struct,
        "data": (ROOT / "tests" / "core" / "golden" / "payloads" / "v1_imvu_1bit.bin").read_bytes(),
    },
}


def commands(block):
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("quietbit ")]


def is_of_the_laboratory(page):
    return name(page).startswith("packages/lab")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if not is_of_the_laboratory(page)], ids=name
)
def test_examples_run(page, tmp_path, monkeypatch):
    run_examples(page, tmp_path, monkeypatch)


def run_examples(page, tmp_path, monkeypatch):
    """In the order of the page, in one folder that has the checkout's examples and experiments, and
    one namespace.

    On several pages stands `quietbit doctor`, which asks one kernel here; its own tests look
    at everything.
    """
    one_kernel(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with patch.dict(LAWS):  # a law that a page adds is gone with it
        run_blocks(page, tmp_path)


def run_blocks(page, tmp_path):
    for folder in ("experiments", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    names = dict(GIVEN.get(name(page), {}))
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, name(page), "exec"), names)  # noqa: S102 - our own documentation
        elif language == "sh":
            for words in commands(block):
                assert main(words) == 0, words


def laboratory_commands():
    group = typer.main.get_command(app)
    return {
        word
        for word, command in group.commands.items()
        if hook("command_line").is_of_laboratory(command)
    }


def unannounced(text):
    """Return the laboratory's commands on a page that stand before a line that installs it."""
    announced = False
    found = []
    for language, block in BLOCK.findall(text):
        if language not in ("sh", "bash", "text"):
            continue
        for line in block.splitlines():
            announced = announced or bool(re.match(r"pip install .*packages/lab", line))
            words = line.split()
            if not announced and words[:1] == ["quietbit"] and words[1] in laboratory_commands():
                found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_installs_the_laboratory_before_it_uses_its_commands(page):
    assert unannounced(page.read_text(encoding="utf-8")) == []


def test_an_unannounced_command_of_the_laboratory_is_noticed():
    page = "```sh\nquietbit doctor\nquietbit train --task digits\n```\n"
    assert unannounced(page) == ["quietbit train --task digits"]
    assert unannounced("```sh\npip install . ./packages/lab  # here\n```\n" + page) == []


def test_the_first_pages_have_examples():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    languages = [language for language, _ in BLOCK.findall(text)]
    assert languages.count("python") >= 1
    assert "make demo" in text[:1200]
    assert "make test" in text[:1200]


def test_flower_finds_the_apps_of_the_readme():
    """`flwr run` looks for them without running the file, and sees plain assignments alone."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (app,) = (block for language, block in blocks if language == "python" and "ClientApp" in block)
    plain = {
        ast.unparse(node.targets[0]) for node in ast.parse(app).body if isinstance(node, ast.Assign)
    }
    assert {"client_app", "server_app"} <= plain


def slug(heading):
    """A heading's anchor, as GitHub and MkDocs both make it."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return plain.replace(" ", "-")


def dead_links(page):
    found = []
    text = re.sub(BLOCK, "", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if target.startswith("http"):
            continue
        aim = page.parent / target if target else page
        headings = (
            re.findall(r"^#+ (.+)$", aim.read_text(encoding="utf-8"), re.MULTILINE)
            if aim.suffix == ".md"
            else []
        )
        if not aim.exists() or (anchor and anchor not in map(slug, headings)):
            found.append(f"{target}#{anchor}")
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    return found + [picture for picture in pictures if not (page.parent / picture).exists()]


@pytest.mark.parametrize("page", EVERYWHERE, ids=name)
def test_links_lead_somewhere(page):
    assert dead_links(page) == []


def test_a_dead_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '# A heading\n[here](#a-heading) [there](nowhere.png) [no](#no-heading) <img src="none.svg">'
    )
    assert dead_links(page) == ["nowhere.png#", "#no-heading", "none.svg"]


def test_the_page_of_the_command_line_is_what_the_commands_say():
    module = hook("command_line")
    for page, text in module.pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name} is stale: run `make site`"
    assert "## quietbit doctor" in module.pages()[module.PAGE]
    assert "## quietbit train" in module.pages()[module.LABORATORY]


def test_the_page_of_the_reference_is_what_the_sources_say():
    module = hook("reference")
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(), "the page is stale: run python docs/hooks/reference.py"


def test_the_reference_has_an_entry_for_every_public_name():
    module = hook("reference")
    headings = re.findall(r"^### (\w+)$", module.page(), re.MULTILINE)
    theirs = {*quietbit.flower.__all__, *quietbit.node.__all__, *quietbit.nvflare.__all__}
    assert set(headings) == theirs | set(quietbit.__all__)


def test_formulas_become_mathml_and_a_broken_one_stops_the_build():
    formula = hook("mathematics").on_page_content
    shown = formula('<p>so <span class="arithmatex">\\(a &lt; b^2\\)</span></p>')
    assert shown.startswith("<p>so <math")
    assert "<msup>" in shown
    for wrong in (r"\frac{a}{b", r"\nosuchword x"):
        with pytest.raises(ValueError, match="cannot be read"):
            formula(f'<div class="arithmatex">\\[{wrong}\\]</div>')


def test_links_that_leave_the_documentation_become_paths():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/page.md"))
    text = "[all](../../examples/a/README.md#top), [here](calibrate.md), [there](../theory/claims.md), [web](https://x.y)"
    settled = hook("reference").on_page_markdown(text, page=page)
    assert settled == text.replace(
        "[all](../../examples/a/README.md#top)", "all (`examples/a/README.md`)"
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    reference = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    for names in hook("reference").public_names().values():
        for public in names:
            assert f'id="{public.lower()}"' in reference, public
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*"|<link[^>]*href="(?:https?:)?//[^"]*"',
            text,
        )
        assert fetched == [], page


def test_lint_gets_every_example_as_the_page_has_it(tmp_path):
    """`make lint` checks their types; `tests/packaging` that a user's mypy sees the package's."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "stale.py").touch()
    written = {
        path.name: path.read_text(encoding="utf-8")
        for path in PAGE_EXAMPLES.write(tmp_path / "modules")
    }
    assert {path.name for path in (tmp_path / "modules").iterdir()} == written.keys()
    for page in PAGES:
        blocks = [
            block
            for language, block in BLOCK.findall(page.read_text(encoding="utf-8"))
            if language == "python"
        ]
        if blocks and name(page) not in GIVEN:
            assert all(block in written[re.sub(r"\W", "_", name(page)) + ".py"] for block in blocks)
    assert len(written) >= 8


def claims():
    lines = [line for page in CLAIMS for line in page.read_text(encoding="utf-8").splitlines()]
    table = [
        line for line in lines if line.startswith("|") and not line.startswith(("| Claim", "|---"))
    ]
    found = [ROW.match(line) for line in table]
    assert all(found), [line for line, match in zip(table, found, strict=True) if not match]
    return [match.groups() for match in found if match]


def points_to(function):
    parts = function.split(".")
    for cut in range(len(parts), 1, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return callable(value) or isinstance(value, property)
    return False


def is_tested_by(file, test):
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return test.startswith("test_") and any(getattr(node, "name", "") == test for node in tree.body)


def test_every_claim_has_its_function_and_its_test():
    found = claims()
    assert len(found) > 150
    assert [claim for claim, function, _, _ in found if not points_to(function)] == []
    assert [claim for claim, _, file, test in found if not is_tested_by(file, test)] == []


def test_a_row_that_points_nowhere_is_noticed():
    assert not points_to("quietbit.privacy.renyi.nothing")
    assert not points_to("quietbit.nowhere.at_all")
    assert not is_tested_by("tests/core/exact/test_privacy_renyi.py", "test_nothing")
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


def test_the_diagrams_are_what_their_hook_draws():
    module = hook("diagrams")
    for name, text in module.diagrams().items():
        assert (module.FOLDER / name).read_text(encoding="utf-8") == text, (
            f"run docs/hooks/diagrams.py ({name})"
        )
