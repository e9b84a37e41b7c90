"""What is pinned: locks hold what the package asks for, every line has digests, and nobody's
address is in them.
"""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOCKS = {"base": (), "flower": ("flower",), "nvflare": ("nvflare",)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def script_of(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "supply" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_pins_resolve_for_this_python():
    """Pins that contradict each other end here; `make lock-check` asks every Python that is found."""
    script = ROOT / "supply" / "lock_check.sh"
    checked = subprocess.run([script, sys.executable], capture_output=True, text=True)
    if checked.returncode == 3:
        pytest.skip("needs a package index that pip can reach")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.endswith("all pins resolve\n")


def test_the_recipe_for_conda_and_the_citation_say_what_the_project_says():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    recipe = yaml.safe_load((ROOT / "supply" / "conda" / "recipe.yaml").read_text())
    python, *packages = recipe["requirements"]["run"]
    assert python == "python " + PROJECT["requires-python"]
    assert [line.replace(" ", "") for line in packages] == PROJECT["dependencies"]
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["about"]["license"] == PROJECT["license"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def lock(name):
    return (ROOT / "supply" / "locks" / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_and_has_digests(name):
    entries = re.split(r"\n(?=[a-z])", lock(name).split("\n", 1)[1].strip())
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+", entry), entry[:60]
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)) >= 1, entry[:60]
    assert len(entries) == len({re.match(r"[^=]+==[^ ]+ ?[^\\]*", entry)[0] for entry in entries})
    assert not re.search(r"https?://|file:|--index|--find", lock(name))


@pytest.mark.parametrize(("name", "extras"), LOCKS.items())
def test_a_lock_has_what_the_package_asks_for_in_the_versions_that_are_tested(name, extras):
    found = script_of("sbom").locked(lock(name))
    asked = list(PROJECT["dependencies"])
    for extra in extras:
        asked += PROJECT["optional-dependencies"][extra]
    for line in asked:
        assert re.match(r"[a-z0-9-]+", line)[0] in found, line
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert {package: found[package] for package in found if package in pins} == {
        package: pins[package] for package in found if package in pins
    }
    assert "torch" not in found  # its wheels differ by accelerator: docs/how-to/own-a-node.md


def test_a_bill_changes_with_what_it_lists_and_with_nothing_else(monkeypatch):
    bill = script_of("sbom").bill
    first = bill(ROOT, "quietbit", "1.0", PROJECT["dependencies"])
    assert bill(ROOT, "quietbit", "1.0", PROJECT["dependencies"]) == first
    assert (
        bill(ROOT, "quietbit", "1.1", PROJECT["dependencies"])["serialNumber"]
        != first["serialNumber"]
    )
    assert "timestamp" not in first["metadata"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert bill(ROOT, "quietbit", "1.0", [])["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    with pytest.raises(KeyError):
        bill(ROOT, "quietbit", "1.0", ["a-package-that-is-not-locked>=1"])


def test_the_laboratorys_tests_run_again_where_it_or_the_library_has_changed(
    tmp_path, monkeypatch, capsys
):
    script = script_of("laboratory")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for folder in (*script.NEEDED, "src/quietbit/flower", "src/quietbit/privacy"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name in script.SETTINGS:
        (tmp_path / name).write_text("")

    def digest():
        script.main()
        return capsys.readouterr().out

    empty = digest()
    (tmp_path / "src/quietbit/flower/client.py").write_text("changed")
    assert digest() == empty
    seen = {empty}
    for place in ("src/quietbit/privacy/cost.py", "packages/lab/a.py", "tests/lab/test_a.py"):
        (tmp_path / place).write_text("changed")
        assert digest() not in seen
        seen.add(digest())
