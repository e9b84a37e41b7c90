"""Imports point one way, and the public surface is the list it says it is."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import quietbit

ROOT = Path(quietbit.__file__).parent
OPTIONAL = (
    "torch",
    "cryptography",
    "matplotlib",
    "typer",
    "rich",
    "dp_accounting",
    "flwr",
    "nvflare",
    "mpmath",
)
FILES = sorted(ROOT.rglob("*.py"))


def test_imports_point_down(monkeypatch):
    """The contract in pyproject.toml: folders and their order."""
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert lint_imports(cache_dir=None) == 0


def test_no_file_is_too_long_and_each_says_what_it_is():
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 800] == []
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []


def test_all_is_sorted_and_complete():
    assert quietbit.__all__ == sorted(set(quietbit.__all__))
    for name in quietbit.__all__:
        assert getattr(quietbit, name) is not None
    assert dir(quietbit) == quietbit.__all__
    with pytest.raises(AttributeError, match="nonsense"):
        quietbit.nonsense  # noqa: B018


def test_the_surface_stays_small():
    assert len(quietbit.__all__) <= 45


def test_every_list_of_names_in_the_package_holds():
    for path in FILES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        )
        if path.stem == "__main__" or "triton" in path.stem:
            continue
        engine = {"flower": "flwr", "nvflare": "nvflare"}.get(path.parent.name)
        if engine is not None and find_spec(engine) is None:
            continue
        listed = next(
            (
                ast.literal_eval(node.value)
                for node in ast.parse(path.read_text(encoding="utf-8")).body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
            ),
            [],
        )
        found = __import__(module, fromlist=["_"]) if listed else None
        assert [name for name in listed if not hasattr(found, name)] == [], (
            module
        )  # some are imported when asked for


def run(code):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_light():
    loaded = run("import sys, quietbit; print(*sys.modules)").split()
    assert not {"numpy", "scipy", *OPTIONAL} & set(loaded)


def test_every_public_name_needs_numpy_and_scipy_alone():
    refuse = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None  # as if it were not installed
import quietbit
for name in quietbit.__all__:
    getattr(quietbit, name)
design = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0))
assert quietbit.certify(design).meets_spec
mechanism = quietbit.InterpolatedMVU(design, quietbit.Ball("l2", 3))
uplink = quietbit.Uplink(mechanism)
assert uplink.receive([uplink.send(__import__("numpy").ones(3), quietbit.seeded_rng(1))]).shape == (3,)
print("done")
"""
    assert run(refuse) == "done\n"


def test_nobody_asks_which_mechanism_it_has():
    """Mechanisms answer by methods; `Mechanism` itself may be asked for, of what a stranger
    hands over.
    """
    nodes = {path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for path in FILES}
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for of_file in nodes.values()
        for node in of_file
        if isinstance(node, ast.ClassDef)
    }
    kinds, found = {"Mechanism"}, []
    for _ in range(4):  # subclasses of subclasses
        kinds |= {name for name, parents in bases.items() if parents & kinds}
    assert {"InterpolatedMVU", "Projected", "LocalSteps"} <= kinds
    for path, of_file in nodes.items():
        for node in of_file:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                found += [f"{path.name}: {name}" for name in asked & (kinds - {"Mechanism"})]
    assert found == []
