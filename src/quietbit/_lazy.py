"""Names of a package that are imported when they are first used, and listed once: in the stub beside the package.

Idea     a type checker reads ``__init__.pyi``; at run time the same file says where each name
         lives. So the list cannot disagree with itself, and importing a package costs nothing until
         something of it is used.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["attach"]


def attach(
    package: str, file: str, needs: tuple[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    ``needs`` is a module, and the extra that brings it, without which the package's own files
    cannot be imported.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        name.name: str(line.module)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs is not None and home.startswith(package + "."):
            importlib.import_module("quietbit.errors").require_module(*needs)
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)  # looked up once
        return value

    names = sorted(homes)
    return find, lambda: sorted(names), names
