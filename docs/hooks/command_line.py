"""Write docs/reference/command-line.md from the commands themselves.

    python docs/hooks/command_line.py

A test fails when the page is not what this would write, so the page cannot fall behind the
commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from quietbit.cli.app import app

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent.parent / "reference" / "command-line.md"
OPENING = """# The command line

`quietbit COMMAND --help` prints what this page says: the page is generated from it (`docs/hooks/command_line.py`).

Every command takes `--json` and `--help`. Tables and JSON go to stdout, progress to stderr. Exit codes: 0 done; 1 done,
and the answer is no; 2 bad input, with one sentence on stderr and nothing written; 130 interrupted.

`quietbit --install-completion` teaches your shell (bash, zsh, fish or PowerShell) to complete commands and options;
`quietbit --show-completion` prints what it would install.
"""


def page() -> str:
    """Return the whole page."""
    group: Any = typer.main.get_command(app)
    return "\n".join(
        [OPENING, *(_section(name, command) for name, command in group.commands.items())]
    )


def _section(name: str, command: Any) -> str:
    """One command, or all of a group's."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return _command(name, command)
    return "\n".join(_section(f"{name} {word}", one) for word, one in inner.items())


def _command(name: str, command: Any) -> str:
    text, *examples = " ".join(command.help.replace("\\[", "[").split()).split("Example: ")
    shown = [one for one in command.params if one.name not in ("help", "json")]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    words = " ".join(
        [
            "quietbit",
            name,
            *(_metavar(one) for one in arguments),
            *(["[OPTIONS]"] if options else []),
        ]
    )
    lines = [
        f"## quietbit {name}",
        "",
        text.strip(),
        "",
        "```text",
        words,
        "```",
        "",
        "For example:",
        "",
        "```bash",
        *(example.strip() for example in examples),
        "```",
        "",
    ]
    for heading, group in (("Argument", arguments), ("Option", options)):
        if group:
            lines += [f"| {heading} | Meaning | Default |", "|---|---|---|", *map(_row, group), ""]
    return "\n".join(lines)


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        name = _metavar(one)
    else:
        spelt = "/".join([*one.opts, *one.secondary_opts])
        name = spelt if one.is_flag else f"{spelt} {_metavar(one)}"
    default = "" if one.default is None or callable(one.default) else str(one.default)
    if one.required:
        default = "required"
    elif one.is_flag if one.param_type_name == "option" else False:
        default = {"True": "on", "False": "off"}.get(default, default)
    shown = f"`{default}`" if default not in ("", "required", "on", "off") else default
    return (
        "| "
        + " | ".join(cell.replace("|", "/") for cell in (f"`{name}`", one.help or "", shown))
        + " |"
    )


def _metavar(one: Any) -> str:
    if one.metavar:
        return str(one.metavar)
    if one.param_type_name == "argument":
        return str(one.name).upper()
    return str(one.type.name).upper().replace("INTEGER", "NUMBER").replace("FLOAT", "NUMBER")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
