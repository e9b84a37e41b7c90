"""Write docs/reference/api.md from the sources, and settle links before MkDocs renders a page.

    python docs/hooks/reference.py

Idea     the stubs ``__init__.pyi`` list every public name; this page has an entry per name, with
         its signature, the first sentence of its docstring, the names of its public members and a
         link to its file, which says the rest. A test fails when the page is not what this would
         write. A link to a file outside of docs/, which works in a checkout and not on the site,
         becomes the file's path in words.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["PAGE", "on_page_markdown", "page", "public_names"]

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "reference" / "api.md"
PACKAGES = ("quietbit", "quietbit.node", "quietbit.flower", "quietbit.nvflare")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)\s]+)?\)")
OPENING = """# API

The names on this page are public; everything else is private and may change ([stability](stability.md)). The page is
generated from the sources (`docs/hooks/reference.py`); each entry links the file that says what its members do.
"""
Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


def public_names() -> dict[str, dict[str, str]]:
    """Return for each public package its names, each with the module that defines it."""
    packages: dict[str, dict[str, str]] = {}
    for package in PACKAGES:
        stub = SOURCES / Path(*package.split("."), "__init__.pyi")
        names: dict[str, str] = {}
        for line in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.ImportFrom):
                for alias in line.names:
                    names[alias.name] = str(line.module)
        packages[package] = names
    return packages


def page() -> str:
    """Return the whole page; a name that two packages have is described once."""
    sections = [OPENING]
    described: set[tuple[str, str]] = set()
    for package, names in public_names().items():
        sections.append(f"## {package}\n")
        known = [name for name, module in names.items() if (module, name) in described]
        if known:
            also = ", ".join(f"[`{name}`](#{name.lower()})" for name in sorted(known))
            sections.append(f"Also here: {also}.\n")
        for name, module in sorted(names.items()):
            if (module, name) not in described:
                sections.append(_entry(name, module))
                described.add((module, name))
    return "\n".join(sections)


def _entry(name: str, module: str) -> str:
    """Return the entry of one name: file, signature, summary and members."""
    file, definition = _definition(name, module)
    link = posixpath.relpath(file.as_posix(), PAGE.parent.as_posix())
    lines = [f"### {name}", "", f"[`{file.relative_to(SOURCES).as_posix()}`]({link})", ""]
    if isinstance(definition, ast.Assign | ast.AnnAssign):
        lines += ["```py", _written(definition), "```", ""]
        return "\n".join(lines)
    if isinstance(definition, ast.ClassDef):
        definition.body = [*_inherited(definition, file), *definition.body]
    lines += ["```py", _signature(definition), "```", "", _summary(definition), ""]
    members = list(_members(definition)) if isinstance(definition, ast.ClassDef) else []
    if members:
        lines += [f"Members: {', '.join(members)}.", ""]
    return "\n".join(lines)


def _written(node: ast.AST) -> str:
    """Return the source of a node, with the formatter's quotes."""
    return ast.unparse(node).replace("'", '"')


def _definition(name: str, module: str) -> tuple[Path, Definition | ast.Assign | ast.AnnAssign]:
    """Return the definition of a name, and its file; a name that is imported there is followed."""
    file = SOURCES / Path(*module.split(".")).with_suffix(".py")
    if not file.exists():
        file = SOURCES / Path(*module.split("."), "__init__.py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return file, node
        if isinstance(node, ast.Assign) and _written(node.targets[0]) == name:
            return file, node
        if isinstance(node, ast.AnnAssign) and _written(node.target) == name:
            return file, node
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return _definition(name, str(node.module))
    raise LookupError(f"a stub says that {module} defines {name}, and it does not.")


def _inherited(node: ast.ClassDef, file: Path) -> list[ast.stmt]:
    """Return the fields and methods of a class of fields that this one extends."""
    module = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
    body: list[ast.stmt] = []
    for base in node.bases:
        if not isinstance(base, ast.Name):
            continue
        try:
            _, parent = _definition(base.id, module)
        except (LookupError, FileNotFoundError):
            continue
        if isinstance(parent, ast.ClassDef) and "frozen" in map(_written, parent.decorator_list):
            own = {getattr(member, "name", "") for member in node.body}
            for member in parent.body:
                if not isinstance(member, ast.Expr) and getattr(member, "name", None) not in own:
                    body.append(member)
    return body


def _summary(node: Definition) -> str:
    """Return the first sentence of a docstring as one line."""
    documented: list[ast.stmt] = []
    for member in node.body:
        if isinstance(member, ast.Expr):
            documented.append(member)
            break
    text = ast.get_docstring(ast.Module(documented, [])) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\w\w\.) (?=[A-Z`])", paragraph)[0]


def _signature(node: Definition) -> str:
    """Return how a function is called, or how an object of a class is made."""
    if isinstance(node, ast.FunctionDef):
        returns = "" if node.returns is None else f" -> {_written(node.returns)}"
        return _call(node.name, _arguments(node), returns)
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _call(node.name, _arguments(member)[1:], "")
    if any(_written(base).endswith("Enum") for base in node.bases):
        values = [_written(member) for member in node.body if isinstance(member, ast.Assign)]
        return "\n".join([f"class {node.name}:", *(f"    {value}" for value in values)])
    bases = ", ".join(_written(base) for base in node.bases)
    if bases.endswith(("Error", "Exception", "Warning")):
        return f"class {node.name}({bases})"
    return _call(node.name, list(_fields(node)), "")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the public fields of a class that attrs or dataclasses makes."""
    for member in node.body:
        if not isinstance(member, ast.AnnAssign):
            continue
        name = _written(member.target)
        annotation = _written(member.annotation)
        if name.startswith("_") or annotation.startswith("ClassVar"):
            continue
        if isinstance(member.value, ast.Call):
            default = next((k.value for k in member.value.keywords if k.arg == "default"), None)
            made = any(keyword.arg in ("factory", "init") for keyword in member.value.keywords)
            if made:
                continue
        else:
            default = member.value
        yield f"{name}: {annotation}" + ("" if default is None else f" = {_written(default)}")


def _arguments(node: ast.FunctionDef) -> list[str]:
    """Return the arguments of a function, a string each, with markers."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    padding = [None] * (len(positional) - len(arguments.defaults))
    written = [
        _argument(argument, default)
        for argument, default in zip(positional, [*padding, *arguments.defaults], strict=True)
    ]
    if arguments.vararg is not None:
        written.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        written.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        written.append(_argument(argument, default))
    if arguments.kwarg is not None:
        written.append(f"**{_argument(arguments.kwarg, None)}")
    return written


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    written = argument.arg
    if argument.annotation is not None:
        written += f": {_written(argument.annotation)}"
    return written if default is None else f"{written} = {_written(default)}"


def _call(name: str, arguments: list[str], returns: str) -> str:
    """Return a call on one line, or with one argument per line where it would be long."""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the name of every public method and property."""
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
            continue
        decorators = {_written(decorator) for decorator in member.decorator_list}
        if "overload" in decorators:
            continue
        is_property = bool(decorators & {"property", "cached_property"})
        yield f"`{member.name}`" if is_property else f"`{member.name}()`"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the path of a file outside of docs/ in place of a link to it."""
    folder = posixpath.dirname(page.file.src_uri)

    def settle(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        outside = not path.startswith("docs/") and not re.match(r"[a-z]+:", link[2])
        if not outside:
            return link[0]
        return link[1] if link[1].startswith("`") else f"{link[1]} (`{path}`)"

    return LINK.sub(settle, markdown)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
