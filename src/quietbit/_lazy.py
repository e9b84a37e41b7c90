"""Names of a package that are imported at first use, listed in the stub beside the package.

Idea     a type checker reads ``__init__.pyi``; at run time the same file says where each name is
         defined. So there is one list, and importing a package costs nothing until a name is used.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["attach"]


def attach(
    package: str,
    file: str,
    needs: tuple[str, str] | None = None,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    ``needs`` is a module without which the package's own files cannot be imported, and the extra
    that installs it. ``renamed`` says of names that are gone what they are called now.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules: dict[str, str] = {}
    for line in stub.body:
        if isinstance(line, ast.ImportFrom):
            for alias in line.names:
                modules[alias.name] = str(line.module)

    def find(name: str) -> Any:
        module = modules.get(name)
        if name in renamed:
            raise ImportError(f"{package}.{name} is now {renamed[name]}.")
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs is not None and module.startswith(package + "."):
            importlib.import_module("quietbit.errors").require_module(*needs)
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)  # so that it is looked up once
        return value

    names = sorted(modules)
    return find, lambda: sorted(names), names
