"""Run the command in this process and look at what a shell would see."""

from __future__ import annotations

import json
from dataclasses import dataclass

from quietbit.cli.main import main

ONE_BIT = "metric-l1_levels-2_bits-1_eps-1_exact"
EIGHT_LEVELS = "metric-l1_levels-8_bits-2_eps-3_exact"


@dataclass(frozen=True)
class Shell:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def shell(capsys, command="", *words):
    """Run a command line; ``words`` are added to it as they are."""
    code = main([*command.split(), *map(str, words)])
    captured = capsys.readouterr()
    return Shell(code, captured.out, captured.err)


def assert_refused(result, *mentions):
    """Exit code 2, nothing on stdout, and exactly one sentence on stderr."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.endswith((".\n", "?\n"))
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for mention in mentions:
        assert mention in result.err
