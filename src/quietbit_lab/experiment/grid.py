"""A sweep file: grids of settings, and the jobs they expand to.

Idea     every list in a grid is an axis; the jobs are their product, over all seeds. One run serves every
         number of rounds asked for: it goes to the largest and is scored at each. A job's name is a digest
         of all that it depends on, so that a finished one is recognised and never run twice.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": the grids of the shipped files.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, final

from quietbit._validate import InvalidParameter, QuietbitError, require
from quietbit_lab.experiment.record import Setting

__all__ = ["Job", "Sweep", "read_sweep"]

TABLES = ("name", "claim", "task", "common", "grid", "reduced")


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep: its setting and the words of its task."""

    setting: Setting
    task: Mapping[str, Any]
    label: str

    @property
    def identity(self) -> str:
        """A digest of everything the result depends on, the random bits of secure runs excepted."""
        text = json.dumps({"settings": self.setting.first_words(), "task": dict(self.task)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@final
@dataclass(frozen=True, slots=True)
class Sweep:
    """A named list of jobs with the claim they are to check."""

    name: str
    claim: str
    jobs: tuple[Job, ...]


def read_sweep(path: Path, *, reduced: bool = False) -> Sweep:
    """A sweep from a TOML file: the whole grid, or with ``reduced`` the small one the file names too.

    ``[common]`` holds for all grids; ``[[grid]]`` has a ``label`` and settings, lists of which are axes;
    ``rounds`` is a list of rounds to score at; ``seeds`` repeats everything. ``[reduced]`` replaces settings
    of ``[common]``, and a grid's own ``reduced`` table those of the grid; an empty list leaves a setting out.
    """
    content = _read(path)
    for name in content:
        require(name in TABLES, f"table of {path.name}", name, "one of " + ", ".join(TABLES))
    grids = content.get("grid", [])
    require(isinstance(grids, list) and grids, f"grid of {path.name}", grids, "a list of tables")
    task = dict(content.get("task", {}))
    jobs: list[Job] = []
    for grid in grids:
        choices = {**content.get("common", {}), **{k: v for k, v in grid.items() if k not in ("label", "reduced")}}
        if reduced:
            choices |= content.get("reduced", {})
            choices |= grid.get("reduced", {})
        jobs += _expand(choices, task, str(grid.get("label", grid.get("mechanism", ""))))
    names = [job.identity for job in jobs]
    require(len(set(names)) == len(names), f"jobs of {path.name}", f"{len(names) - len(set(names))} twice", "different")
    return Sweep(str(content.get("name", path.stem)), str(content.get("claim", "")), tuple(jobs))


def _expand(choices: Mapping[str, Any], task: Mapping[str, Any], label: str) -> list[Job]:
    values = dict(choices)
    rounds = sorted(_listed(values.pop("rounds", [])))
    require(rounds, "rounds", rounds, "a list of rounds to score at")
    seeds = _listed(values.pop("seeds", [0]))
    axes = {name: _listed(value) for name, value in values.items() if value != []}
    jobs = []
    for chosen in product(*axes.values()):
        for seed in seeds:
            given = dict(zip(axes, chosen, strict=True))
            given |= {"rounds": rounds[-1], "evaluate_at": rounds, "seed": seed}
            jobs.append(Job(Setting.from_json({"rng": "seeded", **given}), task, label))
    return jobs


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is not a sweep: {error}.") from error
