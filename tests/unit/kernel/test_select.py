"""Choosing kernels: by name, with one sentence where something is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quietbit.errors import InvalidParameter
from quietbit.kernel.select import KERNELS, default_kernel, select


@pytest.mark.parametrize("name", KERNELS)
def test_names(name: str) -> None:
    assert select(name).name == name


def test_unknown_names_and_threads_are_refused() -> None:
    for name in ("gpu", "", None):
        with pytest.raises(InvalidParameter, match="kernel must be one of cpu, reference, triton"):
            select(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="threads of the reference kernel must be 1"):
        select("reference", threads=2)
    with pytest.raises(InvalidParameter, match="threads"):
        select("cpu", threads=0)


def test_the_default_is_the_cpu_kernel_where_numba_is() -> None:
    assert default_kernel(threads=2).name == "cpu"


@pytest.mark.parametrize(("name", "package"), [("cpu", "numba")])
def test_a_missing_package_is_one_sentence_and_no_fallback(name: str, package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from quietbit.errors import MissingDependency\n"
        "from quietbit.kernel.select import select\n"
        f"try:\n    select({name!r})\nexcept MissingDependency as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    said = f"This needs the package {package}, which is not installed: pip install '.[{name}]' in a checkout of "
    assert run.stdout == f"{said}quietbit.\n"
