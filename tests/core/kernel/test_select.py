"""Choosing kernels: by name, with one sentence where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quietbit
from quietbit.kernel.select import KERNELS, default_kernel, select
from refusals import refuses


@pytest.mark.parametrize("name", KERNELS)
def test_names(name: str) -> None:
    assert select(name).name == name


def test_unknown_names_and_threads_are_refused() -> None:
    for name in ("gpu", "", None):
        with refuses("kernel"):
            select(name)  # type: ignore[arg-type]
    with refuses("threads of the reference kernel"):
        select("reference", threads=2)
    with refuses("threads"):
        select("cpu", threads=0)


def test_the_default_is_the_cpu_kernel() -> None:
    assert default_kernel(threads=2).name == "cpu"


def test_without_a_compiler_numpy_serves_and_says_so_once(tmp_path: Path) -> None:
    """A copy of the package without its library, and a path without a compiler."""
    package = tmp_path / "quietbit"
    shutil.copytree(
        Path(quietbit.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("_quietbit-*", "__pycache__"),
    )
    code = (
        "import sys, warnings; sys.modules['ziglang'] = None\n"
        "import quietbit; from quietbit.kernel.select import default_kernel, select\n"
        "from quietbit.errors import MissingDependency\n"
        "print(default_kernel().name, default_kernel().name)\n"
        "try:\n    select('cpu')\nexcept MissingDependency as error:\n    print('there is no C compiler' in str(error))"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment.pop("CC", None)
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert run.stdout.splitlines() == ["reference reference", "True"]
    assert run.stderr.count("SlowKernelWarning") == 1
    assert "python -m quietbit.kernel.c" in run.stderr
