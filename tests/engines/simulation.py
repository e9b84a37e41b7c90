"""`flwr run` in Flower's simulation runtime: a SuperLink of its own, one run, and nothing left
behind.

Idea     what a user does: a SuperLink in simulation mode (here on a free port), and ``flwr run`` on
         an app folder. Every process below it carries this run's name in its environment, ray's
         included, and is ended by it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from engines.superlink import NAME, EngineFailure, free_port, processes

BIN = Path(sys.executable).parent


def simulate_app(
    app: Path,
    folder: Path,
    *,
    nodes: int,
    workers: int = 2,
    within: float = 300.0,
    name: str = "",
    config: dict[str, object],
) -> str:
    """Run an app on simulated nodes and return its log; config values are written as TOML.

    ``name`` is what its processes carry in their environment, for those who look at them from
    outside.
    """
    if " " in sys.prefix:
        pytest.skip("Ray, under Flower's simulation, starts no worker from a path with a space")
    name, port = name or uuid.uuid4().hex, free_port()
    home = folder / "flower"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        NAME: name,
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
    }
    log, link = home / "log", None
    words = " ".join(f"{key}={value}" for key, value in config.items())
    shape = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={workers}"
    try:
        with log.open("wb") as out:
            start = [
                str(BIN / "flower-superlink"),
                "--insecure",
                "--simulation",
                "--host",
                "127.0.0.1",
            ]
            link = subprocess.Popen(
                [*start, "--port", str(port)], env=environment, stdout=out, stderr=out, cwd=home
            )
        _until(lambda: _answers(port), 60.0, log)
        command = [
            str(BIN / "flwr"),
            "run",
            str(app),
            "here",
            "--stream",
            "--federation-config",
            shape,
        ]
        command += ["--run-config", words] if words else []
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=within, check=False
        )
        if done.returncode:
            raise EngineFailure(
                f"flwr run failed: {done.stdout[-4000:]}\n{done.stderr[-2000:]}\n{_tail(log)}"
            )
        return done.stdout
    except subprocess.TimeoutExpired as error:
        raise EngineFailure(f"flwr run did not end within {within:g} s.\n{_tail(log)}") from error
    finally:
        _end(name)
        if link is not None:
            link.wait(10.0)


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _until(happened, within: float, log: Path) -> None:
    deadline = time.monotonic() + within
    while not happened():
        if time.monotonic() > deadline:
            raise EngineFailure(f"the SuperLink did not answer within {within:g} s.\n{_tail(log)}")
        time.sleep(0.1)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


def _end(name: str) -> None:
    """End every process that carries the name: nothing that they write is kept."""
    deadline = time.monotonic() + 20.0
    while left := processes(name):
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise EngineFailure(f"processes that do not end: {left}")
        time.sleep(0.1)
