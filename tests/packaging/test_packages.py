"""Wheel and sdist as a stranger gets them: built, installed into an empty environment, and tried
there.

The environment is filled in two steps: numpy and scipy alone, with which the library must import
and work; then the rest of what the wheel asks for, with which the command must work. Only the
pinned versions are installed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
pytestmark = pytest.mark.slow


def run(*words, cwd, ok=True, **extra):
    """A program in a clean environment of variables: nothing of this checkout is on its path."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "COV_", "QUIETBIT"))
    }
    command = [str(word) for word in words]
    result = subprocess.run(
        command, cwd=cwd, env=kept | extra, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0 or not ok, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources as they are now: other tests write caches beside them while this one
    reads.
    """
    copy = tmp_path_factory.mktemp("checkout") / "quietbit"
    left = (
        ".venv",
        ".git",
        "__pycache__",
        ".*_cache",
        ".hypothesis",
        "site",
        "dist",
        "build",
        "demo-output",
        "runs",
    )
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*left, "_outer-*", "_build-*"))
    (copy / "site").mkdir()
    (copy / "site" / "index.html").write_text("made by mkdocs: not to be packed")
    return copy


def build(tree, out, *options):
    words = ("-m", "build", "--no-isolation", *options, "--outdir", out, tree)
    run(sys.executable, *words, cwd=tree.parent)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, checkout):
    return build(checkout, tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory, checkout):
    """The wheel of the second distribution."""
    return build(checkout / "packages" / "lab", tmp_path_factory.mktemp("lab"), "--wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory, checkout):
    return build(checkout, tmp_path_factory.mktemp("sdist"), "--sdist")


class Contents:
    """What a wheel holds."""

    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            self.files = {name: archive.read(name) for name in archive.namelist()}
        self.metadata = message_from_string(self.info("METADATA"))
        self.packed = {name for name in self.files if ".dist-info/" not in name}

    def info(self, name):
        """The text of a file of its dist-info."""
        (found,) = [path for path in self.files if path.endswith(f".dist-info/{name}")]
        return self.files[found].decode()

    def asked(self):
        """The distributions that it asks for."""
        lines = self.metadata.get_all("Requires-Dist")
        return {line.split(">=")[0] for line in lines if "extra ==" not in line}

    def count(self, folder, *suffixes):
        """How many files with these ends are in a folder."""
        return sum(name.startswith(folder) and name.endswith(suffixes) for name in self.files)


class Environment:
    """An empty virtual environment."""

    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "venv" / "bin"
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)

    def pip(self, *words, ok=True):
        """Our pip on that environment, which does without one of its own."""
        ours = (
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.bin / "python",
            "--disable-pip-version-check",
            *words,
        )
        return run(*ours, cwd=self.folder, ok=ok)

    def install(self, *words, ok=True):
        return self.pip(
            "install", "--quiet", "--no-compile", "--constraint", CONSTRAINTS, *words, ok=ok
        )

    def python(self, code):
        return run(self.bin / "python", "-W", "error", "-c", code, cwd=self.folder).stdout

    def quietbit(self, *words, ok=True):
        cache = str(self.folder / "cache")
        return run(
            self.bin / "quietbit", *words, cwd=self.folder, ok=ok, QUIETBIT_CACHE=cache, TERM="dumb"
        )


@pytest.fixture(scope="module")
def bare(tmp_path_factory, wheel):
    """The wheel beside numpy and scipy, and nothing else."""
    made = Environment(tmp_path_factory.mktemp("bare"))
    reached = made.install("threadpoolctl", "--target", made.folder / "probe", ok=False)
    if reached.returncode != 0:
        pytest.skip(
            "needs a package index that pip can reach: threadpoolctl could not be fetched from any"
        )
    made.install("numpy", "scipy", "attrs")
    made.install("--no-deps", wheel)
    return made


NUMPY_AND_SCIPY_ALONE = """
import importlib.util, numpy, quietbit, quietbit.errors
for absent in ("typer", "rich", "cryptography", "torch", "matplotlib", "threadpoolctl"):
    assert importlib.util.find_spec(absent) is None, absent
for name in quietbit.__all__:
    getattr(quietbit, name)
design = quietbit.solve(quietbit.DesignSpec(6, 2, 3.0, privacy="strict"))
assert quietbit.certify(design).meets_spec
assert sum(1 for _ in quietbit.catalogue()) == 208
uplink = quietbit.Uplink(quietbit.InterpolatedMVU(design, quietbit.Ball(quietbit.Norm.L1, 21)))
update = numpy.linspace(-1, 1, 21)
data = uplink.send(update, quietbit.seeded_rng(1))
assert uplink.receive([data]).shape == (21,)
try:
    uplink.send(update)
except quietbit.errors.MissingDependency as error:
    print(error)
"""


# One test that goes from step to step: the environment takes half a minute to make, and tests may
# run in any order.
@pytest.mark.long
def test_a_stranger_installs_and_tries_the_wheel(bare, wheel, laboratory):
    refusal = bare.python(NUMPY_AND_SCIPY_ALONE)
    said = (
        "This needs the package cryptography, which is not installed: pip install 'quietbit[all]'"
    )
    assert refusal == f"{said}.\n"

    bare.install(wheel)  # now with what it depends on
    assert "No broken requirements" in bare.pip("check").stdout
    code = "import quietbit, pathlib; print(pathlib.Path(quietbit.__file__).parent)"
    package = Path(bare.python(code).strip())
    assert package.is_relative_to(bare.folder)
    assert (package / "py.typed").is_file()

    assert bare.quietbit("--version").stdout.strip() in wheel.name
    doctor = json.loads(bare.quietbit("doctor", "--json").stdout)
    assert doctor["passed"] is True
    assert doctor["default_kernel"] == "cpu"
    assert doctor["missing"]["flwr"] == "pip install 'quietbit[flower]'"
    wanted = ("--mechanism", "imvu", "--epsilon", 3, "--delta", 1e-5, "--adjacency", "replace-one")
    assert json.loads(bare.quietbit("calibrate", *wanted, "--json").stdout)["epsilon_upper"] <= 3
    absent = bare.quietbit("figure", "--help", ok=False)
    assert absent.returncode == 2
    assert absent.stderr == (
        "quietbit figure is part of quietbit-lab, which is not installed: "
        "pip install ./packages/lab in a checkout of quietbit.\n"
    )
    assert "Start with: quietbit doctor" in bare.quietbit("--help").stdout
    bare.install("--no-deps", laboratory)  # brings commands and families by its entry points
    bare.quietbit(
        "design", "--levels", 8, "--bits", 2, "--design-epsilon", 3, "--out", "table.json"
    )
    bare.quietbit("certify", "table.json", "--no-bound")
    refused = bare.quietbit("figure", "bias-variance", "--out", "figure.png", ok=False)
    assert refused.returncode == 2
    assert "pip install ./packages/lab in a checkout of quietbit" in refused.stderr
    bare.install(
        "quietbit[accounting]"
    )  # what a message says brings the extra, and no other quietbit
    assert "Location: " + str(package.parent) in bare.pip("show", "quietbit").stdout
    completion = run(
        bare.bin / "quietbit", cwd=bare.folder, _QUIETBIT_COMPLETE="source_bash"
    ).stdout
    assert "complete -o default -F _quietbit_completion quietbit" in completion

    (bare.folder / "right.py").write_text(
        "from quietbit import Adjacency, Ball, Norm, calibrate\n"
        "ball = Ball(Norm.L2, dimension=10)\n"
        "found = calibrate('imvu', ball=ball, epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT)\n"
        "epsilon: float = found.guarantee.epsilon_upper\n"
    )
    (bare.folder / "wrong.py").write_text(
        "from quietbit import Ball\nball = Ball('no norm', 'many')\n"
    )
    strict = (
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        bare.bin / "python",
        "--cache-dir",
        bare.folder / "mypy",
    )
    run(sys.executable, *strict, "right.py", cwd=bare.folder)
    seen = run(sys.executable, *strict, "wrong.py", cwd=bare.folder, ok=False)
    assert seen.returncode == 1
    assert 'has incompatible type "str"' in seen.stdout


def test_the_wheel_holds_the_package_and_its_data(wheel, checkout):
    found = Contents(wheel)
    assert "quietbit/py.typed" in found.files
    assert found.count("quietbit/", ".so", ".dylib", ".dll") == 1  # the C kernel
    assert "-py3-none-" in wheel.name
    assert found.count("quietbit/design/catalogue/", ".json") == 208
    assert found.packed == files_under(checkout / "src")
    assert any(name.endswith("licenses/LICENSE") for name in found.files)
    assert "quietbit = quietbit.cli.main:main" in found.info("entry_points.txt")
    assert found.metadata["Requires-Python"] == ">=3.11"
    assert found.asked() == set(
        ["attrs", "cryptography", "numpy", "rich", "scipy", "threadpoolctl", "typer"]
    )
    extras = set(found.metadata.get_all("Provides-Extra"))
    assert extras >= {"torch", "gpu", "flower", "nvflare", "all", "dev"}


def test_the_wheel_has_a_bill_of_materials(wheel):
    found = Contents(wheel)
    (place,) = [name for name in found.files if "/sboms/" in name]
    bill = json.loads(found.files[place])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    component = bill["metadata"]["component"]
    assert (component["name"], component["version"]) == ("quietbit", found.metadata["Version"])
    (root,) = bill["dependencies"]
    named = {one.removeprefix("pkg:pypi/").split("@")[0] for one in root["dependsOn"]}
    assert named == found.asked()
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references)
    assert set(root["dependsOn"]) <= set(references)
    files = [one for one in bill["components"] if one["type"] == "file"]
    digests = {one["name"]: one["hashes"][0]["content"] for one in files}
    sources = {name: data for name, data in found.files.items() if name.endswith((".c", ".h"))}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in sources.items()}
    assert digests


@pytest.mark.long
def test_two_builds_are_equal_byte_by_byte(wheel, checkout, tmp_path):
    """In another folder, at another time of its files, with the kernel compiled anew."""
    other = tmp_path / "elsewhere" / "tree"
    shutil.copytree(checkout, other, ignore=shutil.ignore_patterns("*.so", "*.dylib", "*.dll"))
    for path in other.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    again = build(other, tmp_path / "out", "--wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def files_under(sources):
    return {
        str(path.relative_to(sources))
        for path in sources.glob("quietbit*/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_laboratory_is_a_wheel_of_its_own(laboratory, checkout):
    found = Contents(laboratory)
    assert found.packed == files_under(checkout / "packages" / "lab" / "src")
    suffixes = {Path(name).suffix for name in found.files if "/page_parts/" in name}
    assert suffixes >= {".css", ".html", ".js"}
    assert found.metadata["Name"] == "quietbit-lab"
    assert any(line.startswith("quietbit[") for line in found.metadata.get_all("Requires-Dist"))
    points = found.info("entry_points.txt")
    assert "[quietbit.commands]" in points
    assert "[quietbit.mechanisms]" in points


@pytest.mark.long
def test_the_sdist_holds_all_that_is_needed_to_build_and_test(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    for name in (
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "hatch_build.py",
        "mkdocs.yml",
        "supply/sbom.py",
        "supply/locks/base.txt",
        "deploy/README.md",
    ):
        assert (tree / name).is_file(), name
    for name in (
        "src/quietbit",
        "packages/lab/src",
        "tests/core/golden/payloads",
        "docs",
        "benchmarks",
        "experiments",
        "examples",
    ):
        assert any((tree / name).rglob("*")), name
    leaked = [
        name for name in (".venv", ".git", "demo-output", "site", "dist") if (tree / name).exists()
    ]
    assert leaked == []
    rebuilt = build(tree, tmp_path / "again", "--wheel")
    assert rebuilt.name == wheel.name
    assert rebuilt.read_bytes() == wheel.read_bytes()
