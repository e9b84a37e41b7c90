"""`flwr run` in Flower's simulation runtime: a SuperLink of its own, one run, and nothing left
behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engines.superlink import Network


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
    shape = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={workers}"
    words = " ".join(f"{key}={value}" for key, value in config.items())
    options = ["--stream", "--federation-config", shape]
    if words:
        options += ["--run-config", words]
    given = {"name": name} if name else {}
    with Network(folder / "flower", options=("--simulation",), **given) as network:
        return network.flwr("run", str(app), "here", *options, within=within)
