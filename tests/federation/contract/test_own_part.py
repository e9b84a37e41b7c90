"""The part of docs/how-to/add-a-capability.md, as it is printed there, through all adapters."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.simulate.makers import small_problem
from plans import flat_plan
from quietbit.federation.simulate import Training, simulate

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-capability.md"
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")


@pytest.fixture(name="meter")
def made_from_the_page() -> Any:
    """The meter of the page, with an allowance that one round does not exceed and several do."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 60
    space: dict[str, Any] = {"__name__": "meter"}
    exec(code, space)  # noqa: S102 - our own page
    return space["BandwidthMeter"](10)


def check(records: list[Any], rounds: int, nodes: int) -> None:
    """Every round has a record, and its bytes grow."""
    assert len(records) == rounds
    for name in ("down", "up"):
        totals = [record["bandwidth"][name] for record in records]
        assert all(after > before for before, after in itertools.pairwise(totals))
    assert len(records[-1]["bandwidth"]["beyond"]) == nodes


def test_local(meter: Any) -> None:
    plan = flat_plan(
        "gaussian", clip=1.0, adjacency="zero-out", noise_multiplier=2.0, cohort=60, rng="seeded"
    )
    run = simulate(small_problem(), plan, Training(0.1, 3), parts=[meter])
    check(run.records, 3, 60)
    assert run.records[-1]["bandwidth"]["up"] == 3 * 60 * run.bytes_per_client


def test_flower(meter: Any) -> None:
    pytest.importorskip("flwr", reason="needs the flower extra")
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from engines.flower.kit import (
        CONFIG,
        DIMENSION,
        SIMULATED,
        HandGrid,
        app,
        be_the_server,
        context,
        model,
    )
    from quietbit.flower import PrivateStrategy

    nodes = [11, 12, 13]
    be_the_server()
    strategy = PrivateStrategy(
        FedAvg(min_train_nodes=3, min_available_nodes=3), CONFIG, parts=[meter]
    )
    contexts = {node: context(node, config=CONFIG) for node in nodes}
    arrays = model()
    for number in (1, 2):
        asked = list(strategy.configure_train(number, arrays, ConfigRecord(), HandGrid(nodes)))
        train = app(np.full(DIMENSION, 0.01))
        replies = [
            SIMULATED(message, contexts[message.metadata.dst_node_id], train) for message in asked
        ]
        arrays, _ = strategy.aggregate_train(number, replies)
    report = strategy.report()
    check([entry.records for entry in report.rounds], 2, 3)
    assert report.rounds[-1].records["bandwidth"]["up"] == report.uplink
    assert (
        report.to_json()["rounds"][0]["records"]["bandwidth"]["down"] == report.rounds[0].downlink
    )


def test_nvflare(meter: Any, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs the nvflare extra")
    from engines.nvflare.kit import Server, Site, trained

    server = Server(folder=tmp_path)
    server.data.parts = (meter,)
    site = Site(trained())
    for number in (0, 1):
        server.takes(site.does(server.asks(number=number)), number=number)
    report = server.report(tmp_path)
    check([entry["records"] for entry in report["rounds"]], 2, 1)
    assert report["rounds"][-1]["records"]["bandwidth"]["up"] == report["uplink"]
    assert report["rounds"][-1]["records"]["bandwidth"]["beyond"] == ["site-1"]
