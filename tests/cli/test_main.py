import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest
import typer

from cli.kit import shell
from quietbit.cli.app import GROUPS, app
from quietbit.cli.main import main

COMMANDS = (
    *("compare", "design", "certify", "catalogue", "privacy", "calibrate", "audit", "check"),
    *("train", "sweep", "data", "figure", "report", "demo", "doctor"),
)

LONG = "design --levels 300 --bits 5 --design-epsilon 4"
INTERRUPTED = "Interrupted: the command stopped before it was done."


def test_version(capsys):
    result = shell(capsys, "--version")
    assert (result.code, result.out) == (0, version("quietbit") + "\n")


def test_no_command_prints_the_help(capsys):
    result = shell(capsys)
    assert result.code == 0
    for name in COMMANDS:
        assert name in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_by_an_example_and_offers_json(capsys, name):
    result = shell(capsys, name, "--help")
    assert result.code == 0
    assert f"Example: quietbit {name}" in " ".join(result.out.split())
    assert "--json" in result.out


def test_older_versions_of_typer_abort_instead(capsys, monkeypatch):
    def aborted(*_, **__):
        raise typer.Abort

    monkeypatch.setattr("quietbit.cli.app.app", aborted)
    assert main(["catalogue"]) == 130
    assert capsys.readouterr().err.startswith("Interrupted")


def test_a_bug_is_not_hidden(monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr("quietbit.catalogue", broken)
    with pytest.raises(ZeroDivisionError):
        main(["catalogue"])


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_control_c_at_any_moment_exits_130(tmp_path, delay):
    """Also while modules are imported, and where a library made something else of it."""
    code = f"""
import os, signal, sys, threading, time
from quietbit.cli.main import main
def press():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.001)  # not begun
    time.sleep({delay})
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press, daemon=True).start()
sys.exit(main([*{LONG!r}.split(), "--out", {str(tmp_path / "d")!r}]))
"""
    env = {**os.environ, "QUIETBIT_CACHE": str(tmp_path / "cache")}
    found = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 130
    assert found.stdout == ""
    assert not (tmp_path / "d").exists()
    assert found.stderr.strip().splitlines()[-1] == INTERRUPTED


def test_an_interrupt_in_a_callback_is_not_lost(capsys, monkeypatch):
    class Unlucky:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def unlucky():
        Unlucky()
        time.sleep(30)

    monkeypatch.setattr("quietbit.catalogue", unlucky)
    began = time.monotonic()
    assert shell(capsys, "catalogue").code == 130
    assert time.monotonic() - began < 25


def test_an_interrupt_that_a_library_turns_into_something_else_exits_130(capsys, monkeypatch):
    def unlucky():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy could not be initialised") from None

    monkeypatch.setattr("quietbit.catalogue", unlucky)
    assert shell(capsys, "catalogue").code == 130


@pytest.mark.parametrize(
    "words", [("catalogue", "--json"), ("--version",)]
)  # more than a buffer, and less
def test_a_reader_who_has_seen_enough_is_no_error(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "quietbit", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), err) == (0, "")


def test_help_does_not_wait_for_numpy():
    code = (
        "import sys; from quietbit.cli.main import main; main(['--help']); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], timeout=60, stdout=subprocess.DEVNULL
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    "shell_name", ["bash", *(pytest.param(one, marks=pytest.mark.long) for one in ("zsh", "fish"))]
)
def test_shells_complete_commands_and_options(shell_name):
    def ask(**extra):
        words = [sys.executable, "-m", "quietbit"]
        return subprocess.run(
            words, env={**os.environ, **extra}, capture_output=True, text=True, timeout=60
        )

    script = ask(_QUIETBIT_COMPLETE=f"source_{shell_name}")
    assert (script.returncode, script.stderr) == (0, "")
    assert "_QUIETBIT_COMPLETE=complete_" in script.stdout
    typed = {"COMP_WORDS": "quietbit ca", "COMP_CWORD": "1"}
    typed |= {"_TYPER_COMPLETE_ARGS": "quietbit ca", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    offered = ask(_QUIETBIT_COMPLETE=f"complete_{shell_name}", **typed)
    assert offered.returncode == 0
    assert "catalogue" in offered.stdout
    assert "calibrate" in offered.stdout


def test_commands_are_grouped_by_what_people_want(capsys):
    out = shell(capsys, "--help").out
    places = [out.index(f" {group} ") for group in GROUPS]
    assert places == sorted(places)
    assert {name for names in GROUPS.values() for name in names} == {*COMMANDS, "node"}
    assert {command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)


def test_a_command_of_the_laboratory_says_how_to_get_it(tmp_path):
    """In a process that sees quietbit and no other distribution, as after pip install quietbit."""
    program = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **named: ()\n"
        "from quietbit.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def said(*words):
        run = [sys.executable, "-c", program, *words]
        return subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)

    for words in (("demo", "--out", "x"), ("audit", "--help"), ("train", "more", "--lr", "1")):
        refused = said(*words)
        assert refused.returncode == 2
        assert refused.stderr == (
            f"quietbit {words[0]} is part of quietbit-lab, which is not installed: "
            "pip install ./packages/lab in a checkout of quietbit.\n"
        )
    shown = said("--help").stdout
    assert "Start with: quietbit doctor" in shown
    assert "demo" not in shown
