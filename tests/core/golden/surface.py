"""What other people's files and programs name: public Python names, keys of a plan, commands and
options, JSON reports.

    PYTHONPATH=tests python tests/core/golden/surface.py      # at every release: writes surface.json

Nothing in the file may go away without a minor version in which the old spelling still works and
warns (docs/reference/stability.md).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "surface.json"
PACKAGES = ("quietbit", "quietbit.flower", "quietbit.nvflare", "quietbit.node")
COMMANDS = (
    "calibrate",
    "compare",
    "doctor",
    "node",
)  # of quietbit itself; the laboratory's may change


def surface() -> dict[str, Any]:
    """Return what there is now."""
    from typer.main import get_command

    from quietbit.cli.app import app
    from quietbit.federation.plan import KEYS
    from quietbit.federation.report import NodeReport, Report, RoundReport

    commands = get_command(app).commands  # type: ignore[attr-defined]
    return {
        "names": {
            package: sorted(importlib.import_module(package).__all__) for package in PACKAGES
        },
        "plan": sorted(KEYS),
        "commands": {
            word: options
            for name in COMMANDS
            for word, options in _options(name, commands[name]).items()
        },
        "report": {
            one.__name__: sorted(field.name for field in dataclasses.fields(one))
            for one in (NodeReport, Report, RoundReport)
        },
    }


def _options(name: str, command: Any) -> dict[str, list[str]]:
    """Return the options of a command, or of all commands of a group."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        return {
            word: found
            for key, one in inner.items()
            for word, found in _options(f"{name} {key}", one).items()
        }
    return {
        name: sorted(
            word for parameter in command.params for word in parameter.opts if word.startswith("--")
        )
    }


if __name__ == "__main__":
    STORED.write_text(json.dumps(surface(), indent=1) + "\n")
