"""Write the two pages of the command line, the library's and the laboratory's, from the commands.

    python docs/hooks/command_line.py

A test fails when a page is not what this would write, so no page can fall behind the commands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main

from quietbit.cli.app import app

__all__ = ["LABORATORY", "PAGE", "is_of_laboratory", "pages"]

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "command-line.md"
LABORATORY = ROOT / "packages" / "lab" / "docs" / "command-line.md"
OPENING = """# The command line

This page is generated from the commands (`docs/hooks/command_line.py`); `quietbit COMMAND --help` says more about each.
Every command takes `--json` and `--help`. Tables and JSON go to stdout, progress to stderr. Exit codes: 0 done; 1 done,
and the answer is no; 2 bad input, with one sentence on stderr and nothing written; 130 interrupted.
`quietbit --install-completion` teaches your shell to complete commands and options. `train`, `demo`, `sweep`, `report` and others are
[the laboratory's](../../packages/lab/docs/command-line.md).
"""


LABORATORY_OPENING = """# The laboratory's commands

Besides [the library's](../../../docs/reference/command-line.md), which says what holds for all of them, once this is installed:

```bash
pip install . ./packages/lab    # in a checkout of quietbit
```
"""


def pages() -> dict[Path, str]:
    """Return both pages: the commands of the library, and those of the laboratory."""
    group: Any = typer.main.get_command(app)
    texts = {PAGE: [OPENING], LABORATORY: [LABORATORY_OPENING]}
    for name, command in group.commands.items():
        place = LABORATORY if is_of_laboratory(command) else PAGE
        texts[place].append(_section(name, command))
    return {place: "\n".join(sections) for place, sections in texts.items()}


def is_of_laboratory(command: Any) -> bool:
    """Return whether the laboratory brings a command."""
    return str(getattr(command.callback, "__module__", "")).startswith("quietbit_lab")


def _section(name: str, command: Any) -> str:
    """One command, or all of a group's."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return _command(name, command)
    return "\n".join(_section(f"{name} {word}", one) for word, one in inner.items())


def _command(name: str, command: Any) -> str:
    """Return what a command does, its first example, and a line per argument and option."""
    text, *examples = " ".join(command.help.replace("\\[", "[").split()).split("Example: ")
    lines = [f"## quietbit {name}", "", re.split(r"(?<=\.) ", text)[0].strip(), ""]
    lines += ["```bash", *(example.strip() for example in examples[:1]), "```", ""]
    shown = [one for one in command.params if one.name not in ("help", "json")]
    if shown:
        lines += ["| | |", "|---|---|", *map(_row, shown), ""]
    return "\n".join(lines)


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        name = _metavar(one)
    else:
        spelt = "/".join([*one.opts, *one.secondary_opts])
        name = spelt if one.is_flag else f"{spelt} {_metavar(one)}"
    is_flag = one.param_type_name == "option" and one.is_flag
    ending = ""
    if one.required:
        ending = " Required."
    elif not is_flag and one.default is not None and not callable(one.default):
        ending = f" Default: `{one.default}`."
    meaning = f"{one.help or ''}{ending}"
    return f"| `{name.replace('|', '/')}` | {meaning.replace('|', '/')} |"


def _metavar(one: Any) -> str:
    if one.metavar:
        return str(one.metavar)
    if one.param_type_name == "argument":
        return str(one.name).upper()
    return str(one.type.name).upper().replace("INTEGER", "NUMBER").replace("FLOAT", "NUMBER")


if __name__ == "__main__":
    for place, text in pages().items():
        place.write_text(text, encoding="utf-8")
