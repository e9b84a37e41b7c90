"""Jobs in a folder, verdicts on them, and the deviation of noise with a stated false alarm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, gamma

from quietbit.check.law import Release
from quietbit.check.reader import read_job
from quietbit.check.values import Given
from quietbit.check.verdict import Verdict, judge
from quietbit.target import Adjacency

FALSE_ALARM = 1e-9
FILTERS = "nvflare.app_common.filters"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def job(folder: Path, **texts: str) -> Path:
    """Write files into a folder; ``_py`` and ``_toml`` in a name are the ending."""
    endings = [
        (name.replace("_toml", ".toml").replace("_py", ".py"), texts[name]) for name in texts
    ]
    return write(folder, dict(endings))


def nvflare_job(
    folder: Path, *filters: dict[str, Any], rounds: int | None = 1, **client: Any
) -> Path:
    """Write an NVFlare job whose task ``train`` has these result filters."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    chain = [{"tasks": ["train"], "filters": list(filters)}] if filters else []
    table = {"format_version": 2, "task_result_filters": chain, "components": [], **client}
    (config / "config_fed_client.json").write_text(json.dumps(table, indent=1))
    arguments = {} if rounds is None else {"num_rounds": rounds}
    flow = {"id": "c", "path": "nvflare.app_common.workflows.fedavg.FedAvg", "args": arguments}
    (config / "config_fed_server.json").write_text(json.dumps({"workflows": [flow]}))
    return folder


def verdict(path: Path, *pairs: str, given: dict[str, Any] | None = None, **asked: Any) -> Verdict:
    return judge(read_job(path), Given.of(list(pairs), **(given or {})), **asked)


@dataclass(frozen=True)
class Row:
    release: Release
    zero_out: float
    replace_one: float


def row(path: Path, *pairs: str, what: str = "update", **asked: Any) -> Row:
    found = verdict(path, *pairs, **asked)
    assert not found.missing, found.missing
    (one,) = [release for release in found.releases if release.what == what]
    delta = found.delta
    return Row(
        one, one.epsilon(Adjacency.ZERO_OUT, delta), one.epsilon(Adjacency.REPLACE_ONE, delta)
    )


def reasons(row: Row | Release) -> set[str]:
    release = row.release if isinstance(row, Row) else row
    return {why.reason.name for why in release.why}


def assert_normal(values: Any, deviation: float) -> None:
    """The sum of squares of so many normal values is between its quantiles of 1e-9 together."""
    numbers = np.asarray(values, dtype=np.float64).ravel()
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], numbers.size)
    assert low <= float(numbers @ numbers) / deviation**2 <= high


def assert_laplace(values: Any, scale: float) -> None:
    numbers = np.abs(np.asarray(values, dtype=np.float64).ravel())
    low, high = gamma.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], numbers.size)
    assert low <= float(numbers.sum()) / scale <= high


def catches(check: Any, values: Any, number: float) -> None:
    """The check accepts the number of the law, and refuses one that is 5 % off either way."""
    check(values, number)
    for wrong in (0.95, 1.05):
        with pytest.raises(AssertionError):
            check(values, wrong * number)
