"""Imports point one way, and the public surface is the list it says it is."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import quietbit

ROOT = Path(quietbit.__file__).parent
LAYERS = (
    "cli", "plot", "flower", "node", "simulate", "plan", "secagg", "auditor", "wire", "mechanism", "privacy", "kernel",
    "design",
)  # fmt: skip
BESIDE = {"nvflare": "flower"}  # the second engine stands beside the first: neither imports the other
GROUND = {"_files", "_search", "_threads", "_typing", "errors", "target"}
OPTIONAL = (
    "numba", "torch", "cryptography", "matplotlib", "typer", "rich", "dp_accounting", "flwr", "nvflare", "mpmath",
)  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def height(module: str) -> int:
    """0 is the ground; layers above it in the order of the list; the package itself is on top."""
    parts = module.split(".")
    if len(parts) == 1:
        return len(LAYERS) + 1
    return 0 if parts[1] in GROUND else len(LAYERS) - LAYERS.index(BESIDE.get(parts[1], parts[1]))


def imported(path: Path) -> set[str]:
    """Every quietbit module a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            whole = node.module or ""
            # ``from quietbit.design import spec`` names a module, ``from quietbit import solve`` does not.
            inner = (ROOT.parent / Path(*whole.split("."))).is_dir() and whole != "quietbit"
            found |= {f"{whole}.{alias.name}" for alias in node.names} if inner else {whole}
    return {name for name in found if name.split(".")[0] == "quietbit"}


def wrong_way(importer: str, name: str) -> bool:
    inside = importer.split(".")[1:2] == name.split(".")[1:2]
    if name == "quietbit":  # the public names: for those who stand above all layers that have them
        return height(importer) < len(LAYERS)
    return not inside and height(name) >= max(1, height(importer))  # files of the ground may share


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    importer = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    assert sorted(name for name in imported(path) if wrong_way(importer, name)) == []


def test_the_rule_can_fail():
    assert wrong_way("quietbit.design.solve", "quietbit.privacy.curve")
    assert wrong_way("quietbit.errors", "quietbit.design.spec")
    assert wrong_way("quietbit.mechanism.additive", "quietbit")
    assert wrong_way("quietbit.nvflare.client", "quietbit.flower.client")
    assert wrong_way("quietbit.flower.client", "quietbit.nvflare.client")
    assert not wrong_way("quietbit.privacy.curve", "quietbit.design.table")
    assert not wrong_way("quietbit.cli.main", "quietbit")


def test_every_folder_is_a_known_layer():
    folders = {path.relative_to(ROOT).parts[0] for path in FILES if path.parent != ROOT}
    assert folders <= {*LAYERS, *BESIDE}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long_and_each_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 600
    assert ast.get_docstring(ast.parse(text))


def test_all_is_sorted_and_complete():
    assert quietbit.__all__ == sorted(set(quietbit.__all__))
    for name in quietbit.__all__:
        assert getattr(quietbit, name) is not None
    assert dir(quietbit) == quietbit.__all__
    with pytest.raises(AttributeError, match="nonsense"):
        quietbit.nonsense  # noqa: B018


def test_the_three_lists_of_public_names_agree():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {(f"quietbit.{home}", name) for home, names in quietbit._HOMES.items() for name in names}
    assert typed == homes
    assert sorted({name for _, name in homes} | {"__version__"}) == quietbit.__all__


def test_every_list_of_names_in_the_package_holds():
    for path in FILES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
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
        assert [name for name in listed if not hasattr(found, name)] == [], module  # some are imported when asked for


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
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
mechanism = quietbit.InterpolatedMVU(design, quietbit.Ball("l2", 1.0, 3))
uplink = quietbit.Uplink(mechanism)
assert uplink.receive([uplink.send(__import__("numpy").ones(3), quietbit.seeded_rng(1))]).shape == (3,)
print("done")
"""
    assert run(refuse) == "done\n"
