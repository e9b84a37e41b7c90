"""A real Flower deployment on the loopback interface: one SuperLink, its SuperNodes, and a proxy
before each.

Idea     the processes an operator would start, on free ports, each SuperNode with a home of its own
         as on a machine of its own. Every wait is bounded. Each process carries this network's name
         in its environment, so that closing the network finds and ends every process below it, and
         no other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, final
from urllib.error import URLError
from urllib.request import urlopen

from engines.wire import Wire

BIN = Path(sys.executable).parent
NAME = "QUIETBIT_TEST_NETWORK"
START, RUN, STOP = 120.0, 420.0, 20.0  # longest waits, in seconds
Value = str | int | float | bool


class EngineFailure(AssertionError):
    """The engine did not do in time what was waited for; the message ends with its logs."""


@final
@dataclass(slots=True, eq=False)
class Node:
    """One SuperNode: its process, what was on its wire, and the folder that is its machine's
    disk.
    """

    name: str
    config: Mapping[str, Value]
    wire: Wire
    home: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """What the SuperNode and its ClientApps have written so far."""
        return _text(self.home / "log")

    @property
    def identity(self) -> int | None:
        """The node's number, once the SuperLink has given it one."""
        found = re.findall(r"SuperNode ID: (\d+)", self.log)
        return int(found[-1]) if found else None


@final
@dataclass(slots=True, eq=False)
class Network:
    """Use as a context: what was started is ended when it closes, whatever happened inside."""

    folder: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    options: tuple[str, ...] = ()  # of the SuperLink
    nodes: dict[str, Node] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    port: int = 0
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Network:
        self.port = free_port()
        self.start_superlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again over the same database and port."""
        home = self.folder / "superlink"
        home.mkdir(parents=True, exist_ok=True)
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", *self.options]
        place = ["--port", str(self.port), "--database", str(home / "state.db")]
        self._start([*command, *place], home)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        self.until(self._answers, "the SuperLink answers", START)

    def kill_superlink(self) -> None:
        """End the SuperLink without a word, as a power cut would."""
        self._cut_power(self.folder / "superlink")

    def start_node(self, name: str, config: Mapping[str, Value]) -> Node:
        """Start a SuperNode with this configuration, or start it again on the same disk and
        behind the same proxy.
        """
        old = self.nodes.get(name)
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        wire = old.wire if old else Wire(self.port)
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{wire.port}"]
        command += ["--node-config", _words(config)]
        process = self._start([*command, "--host", "127.0.0.1", "--port", str(free_port())], home)
        self.nodes[name] = Node(name, config, wire, home, process)
        return self.nodes[name]

    def kill_node(self, name: str) -> None:
        """End the SuperNode and whatever runs below it with SIGKILL, as a power cut of its
        machine would.
        """
        self._cut_power(self.nodes[name].home)

    def run(self, app: Path, config: Mapping[str, Value]) -> str:
        """Submit the app with ``flwr run``; returns at once with the run's number."""
        done = self.flwr(
            "run", str(app), "here", "--format", "json", "--run-config", _words(config)
        )
        self.runs.append(str(_json(done)["run-id"]))
        return self.runs[-1]

    def status(self, run: str) -> str:
        """What the SuperLink says of a run: ``running``, ``finished:completed``,
        ``finished:failed`` ...
        """
        runs = _json(self.flwr("list", "here", "--run-id", run, "--format", "json"))["runs"]
        return str(runs[0]["status"])

    def training(self) -> bool:
        """Whether a ClientApp is at work on any node."""
        return any(
            b"flwr-clientapp" in _bytes(Path("/proc") / str(number) / "cmdline")
            for number in processes(self.name)
        )

    def flwr(self, *words: str, within: float = START) -> str:
        """Run Flower's command line on this SuperLink and return what it prints."""
        try:
            done = self._command(*words, within=within)
        except subprocess.TimeoutExpired as error:
            raise EngineFailure(
                f"flwr {words[0]}: not within {within:g} s\n{self.logs()}"
            ) from error
        if done.returncode:
            raise EngineFailure(
                f"flwr {' '.join(words)}: {done.stdout[-4000:]} {done.stderr}\n{self.logs()}"
            )
        return done.stdout

    def until(self, happened: Callable[[], object], what: str, within: float = RUN) -> None:
        """Wait for something to happen."""
        deadline = time.monotonic() + within
        while not happened():
            if time.monotonic() > deadline:
                raise EngineFailure(f"{what}: not within {within:g} s.\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The end of every process's log, and of the last run's ServerApp."""
        told = self._command("log", self.runs[-1], "here", "--show").stdout if self.runs else ""
        homes = [self.folder / "superlink", *(node.home for node in self.nodes.values())]
        found = [f"--- {home.name}\n{_text(home / 'log')[-4000:]}" for home in homes]
        return "\n".join([*found, f"--- ServerApp\n{told[-8000:]}"])

    def close(self) -> None:
        """End every process of this network at once, and close the proxies: nothing that they
        write is kept.
        """
        self._cut_power()
        for process in self._started:
            process.wait(STOP)
        for node in self.nodes.values():
            node.wire.close()

    def _cut_power(self, home: Path | None = None) -> None:
        deadline = time.monotonic() + STOP
        while here := processes(self.name, home):
            if time.monotonic() > deadline:
                raise EngineFailure(f"processes that do not end: {here}")
            for number in here:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)

    def _start(self, command: list[str], home: Path) -> subprocess.Popen[bytes]:
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=home,
                env=self._environment(home),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def _command(self, *words: str, within: float = START) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *words],
            env=self._environment(self.folder / "superlink"),
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def _environment(self, home: Path) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_DISABLE_MEMORY_MONITOR": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            NAME: self.name,
        }

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def processes(name: str, home: Path | None = None) -> list[int]:
    """The living processes that carry this network's name (and have this home), from /proc."""
    marks = {f"{NAME}={name}".encode()} | ({f"FLWR_HOME={home}".encode()} if home else set())
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if not zombie and marks <= set((folder / "environ").read_bytes().split(b"\0")):
                    found.append(int(folder.name))
    return found


def _words(config: Mapping[str, Value]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has ended meanwhile


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _json(text: str) -> dict[str, Any]:
    """The JSON object that a command printed, after whatever else it printed."""
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found
