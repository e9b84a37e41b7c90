"""A reader holds one file in the head: no import cycles, short ways down, few names per file.

Each figure is a ceiling, lowered as the house gets simpler and never raised. Imports are counted
wherever they stand: under TYPE_CHECKING and inside functions, too.
"""

import ast
from functools import cache
from pathlib import Path
from statistics import median

import quietbit

SRC = Path(quietbit.__file__).parent
LAB = SRC.parents[1] / "packages" / "lab" / "src" / "quietbit_lab"
MODULES_IN_CYCLES = 0
MODULES_OF_A_PART = 60
NAMES_OF_A_FILE = 40
MEDIAN_NAMES = 10


@cache
def modules():
    """Return the files of the library and of the laboratory by the modules that they are."""
    found = {}
    for root in (SRC, LAB):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imported(path):
    """Return the modules of ours that a file imports, each with a name that it takes from it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append((inner, "") if inner in modules() else (node.module, alias.name))
    return [(module, name) for module, name in found if module in modules()]


@cache
def edges():
    """Return which modules each module imports; packages that only list names are left out."""
    graph = {}
    for name, path in modules().items():
        targets = {module for module, _ in imported(path)}
        graph[name] = {module for module in targets if modules()[module].stem != "__init__"}
        graph[name] -= {name}
    return graph


@cache
def reached(start):
    """Return the modules of ours that must be known to know everything in one of them."""
    found = set()
    waiting = [start]
    while waiting:
        for target in edges()[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return frozenset(found)


def test_no_module_imports_itself_by_way_of_others():
    cycles = sorted(name for name in modules() if name in reached(name))
    assert len(cycles) <= MODULES_IN_CYCLES, cycles


def test_a_part_of_a_run_reaches_few_modules():
    parts = [name for name in modules() if name.startswith("quietbit.federation.parts.")]
    assert len(parts) >= 5
    sizes = {name: len(reached(name)) for name in parts}
    assert max(sizes.values()) <= MODULES_OF_A_PART, sizes


def test_a_file_imports_few_of_our_names():
    counts = {}
    for name, path in modules().items():
        if path.stem != "__init__":
            counts[name] = len(set(imported(path)))
    most = sorted(counts, key=lambda name: counts[name])[-5:]
    assert counts[most[-1]] <= NAMES_OF_A_FILE, {name: counts[name] for name in most}
    assert median(counts.values()) <= MEDIAN_NAMES


def test_the_measures_see_imports_wherever_they_stand(tmp_path):
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from quietbit.target import Target\n"
        "def work():\n    from quietbit import errors\n    import quietbit.wire.uplink\n"
    )
    path = tmp_path / "file.py"
    path.write_text(text, encoding="utf-8")
    assert imported(path) == [
        ("quietbit.target", "Target"),
        ("quietbit.errors", ""),
        ("quietbit.wire.uplink", ""),
    ]
