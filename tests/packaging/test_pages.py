"""Every shell line of the README and the pages is run in order, as a reader would run it.

Each page gets an environment with what the page itself installs, and nothing else: a page without
an install line gets `pip install .`. Blocks marked ``sh`` are run; ``bash`` is for what takes
containers, several machines or a download of gigabytes, and ``text`` shows output.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "packages" / "lab" / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LEFT = (".venv", ".git", "__pycache__", ".*_cache", ".hypothesis", "site", "dist", "build", "runs")
pytestmark = pytest.mark.long


def lines_of(page):
    """Return the commands of a page; a command that goes on is one, and so is a loop."""
    commands = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if commands and (commands[-1].endswith("\\") or is_open(commands[-1])):
                commands[-1] += "\n" + line
            elif line.strip() and not line.startswith("#"):
                commands.append(line)
    return commands


def is_open(command):
    """Return whether a loop has begun and not ended."""
    return command.startswith("for ") and not command.endswith("done")


def is_install(command):
    return command.startswith("pip install ")


WITH_COMMANDS = [page for page in PAGES if lines_of(page)]


class Shell:
    """One shell whose folder, variables and environment go on from line to line."""

    def __init__(self, folder, environment):
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        kept["PATH"] = f"{environment / 'bin'}{os.pathsep}{kept['PATH']}"
        kept["XDG_CACHE_HOME"] = str(folder / "cache")
        kept["FLWR_HOME"] = str(folder / "flwr")
        self.variables = kept
        self.done = []

    def run(self, command):
        """Run a line after those that change the shell; fail with what it printed."""
        before = [line for line in self.done if line.startswith(("cd ", "export "))]
        script = "\n".join(["set -e", *before, command])
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}{result.stderr[-4000:]}"
        self.done.append(command)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, where the pages' install lines are run."""
    copy = tmp_path_factory.mktemp("pages") / "quietbit"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT, "_outer-*", "_build-*"))
    return copy


@pytest.fixture(scope="module")
def environments(checkout):
    """The environments made so far, by the install lines that filled them."""
    return {}


def environment(made, checkout, installs):
    """Return an environment in which these lines, and no others, were run."""
    if installs not in made:
        folder = checkout.parent / f"environment-{len(made)}"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
        for line in installs:
            result = subprocess.run(
                ["bash", "-c", line],
                cwd=checkout,
                env=os.environ
                | {
                    "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                    "PIP_CONSTRAINT": str(checkout / "constraints.txt"),
                    "PIP_QUIET": "1",
                },
                capture_output=True,
                text=True,
                timeout=1800,
            )
            if "No matching distribution" in result.stderr and not made:
                pytest.skip("needs a package index that pip can reach")
            assert result.returncode == 0, f"{line}\n{result.stderr[-4000:]}"
        made[installs] = folder
    return made[installs]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_as_written(
    page,
    checkout,
    environments,
    tmp_path,
):
    """In a folder beside the examples and experiments of the checkout.

    `make demo` and `make test` are run by the workflow, in a fresh clone.
    """
    commands = lines_of(page)
    installs = tuple(command for command in commands if is_install(command))
    if not any(command.startswith("pip install .") for command in installs):
        installs = ("pip install .", *installs)
    for name in ("examples", "experiments", "packages", "supply"):
        shutil.copytree(checkout / name, tmp_path / name)
    shell = Shell(tmp_path, environment(environments, checkout, installs))
    for command in commands:
        if not is_install(command) and not command.startswith("make "):
            shell.run(command)


def test_lines_that_go_on_are_one_command(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nquietbit a \\\n  --b\nfor n in 0 1; do\n  mkdir n-$n\ndone\n# no command\nexport X=1\n```\n"
    )
    assert lines_of(page) == [
        "quietbit a \\\n  --b",
        "for n in 0 1; do\n  mkdir n-$n\ndone",
        "export X=1",
    ]


def test_a_command_that_fails_is_noticed(tmp_path):
    shell = Shell(tmp_path, Path(sys.prefix))
    shell.run("mkdir inner")
    shell.run("cd inner")
    shell.run("test $(basename $PWD) = inner")
    with pytest.raises(AssertionError, match="nothing"):
        shell.run("cat nothing")
