"""A sweep file: grids of settings, and the jobs they expand to.

Idea     every list in a grid is an axis; the jobs are their product, over all seeds. One run serves
         every number of rounds asked for: it goes to the largest and is scored at each. A job's
         name is a digest of all that it depends on, so that a finished one is recognised and never
         run twice. With a table `[choose]` the grid is run on that table's seeds alone, and
         `race.py` says what is reported.
Source   Guo et al. (ICML 2023), appendix "Choice of Hyperparameters": the grids of the shipped
         files.
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

from quietbit.errors import InvalidParameter, QuietbitError, require
from quietbit_lab.experiment.record import Setting

__all__ = ["DRAWS", "Job", "Race", "Sweep", "read_sweep"]

TABLES = ("name", "claim", "task", "common", "grid", "reduced", "choose", "report")
DRAWS = ("clients", "sums")
INNERMOST = (
    "lr",
    "clip",
)  # axes that privacy does not depend on: runs to be compared stand side by side


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
        text = json.dumps(
            {"settings": self.setting.first_words(), "task": dict(self.task)}, sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@final
@dataclass(frozen=True, slots=True)
class Race:
    """How the jobs of a sweep choose what is reported: by seeds that are not reported themselves.

    ``seeds`` report. Runs that are ``drop_behind`` points behind are dropped while choosing, and
    chosen points closer than the factor ``apart`` in epsilon are thinned. ``draw`` and
    ``report_draw`` say what a device draws.
    """

    seeds: tuple[int, ...]
    drop_behind: float | None = None
    draw: str = "clients"
    report_draw: str = "clients"
    apart: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        for draw in (self.draw, self.report_draw):
            require(draw in DRAWS, "draw", draw, "one of " + ", ".join(DRAWS))
        require(
            self.drop_behind is None or self.drop_behind > 0,
            "drop_behind",
            self.drop_behind,
            "above 0",
        )
        require(self.apart >= 1, "apart", self.apart, "at least 1")


@final
@dataclass(frozen=True, slots=True)
class Sweep:
    """A named list of jobs with the claim they are to check; with a race they only choose."""

    name: str
    claim: str
    jobs: tuple[Job, ...]
    race: Race | None = None


def read_sweep(path: Path, *, reduced: bool = False) -> Sweep:
    """Read a sweep from a TOML file: the full grid, or with ``reduced`` the small one.

    ``[common]`` holds for all grids; ``[[grid]]`` has a ``label`` and settings, lists of which are
    axes; ``rounds`` is a list of rounds to score at; ``seeds`` repeats everything. ``[reduced]``
    replaces settings of ``[common]``, and a grid's own ``reduced`` table those of the grid; an
    empty list leaves a setting out. ``[choose]`` names ``seeds`` of its own, and may say
    ``drop_behind`` and ``draw``; the jobs are then those, and the seeds of ``[common]`` report;
    ``[report]`` may say ``draw`` and ``apart``.
    """
    content = _read(path)
    for name in content:
        require(name in TABLES, f"table of {path.name}", name, "one of " + ", ".join(TABLES))
    grids = content.get("grid", [])
    require(
        isinstance(grids, list) and grids,
        f"grid of {path.name}",
        grids,
        "a list of tables",
        "add a [[grid]]",
    )
    task = dict(content.get("task", {}))
    jobs: list[Job] = []
    choose = content.get("choose")
    if choose is None:
        race = None
    else:
        race = _race(content, reduced)
    for grid in grids:
        choices = {
            **content.get("common", {}),
            **{k: v for k, v in grid.items() if k not in ("label", "reduced")},
        }
        if reduced:
            choices |= content.get("reduced", {})
            choices |= grid.get("reduced", {})
        if choose is not None:
            choices["seeds"] = choose["seeds"]
        jobs += _expand(choices, task, str(grid.get("label", grid.get("mechanism", ""))))
    names = [job.identity for job in jobs]
    require(
        len(set(names)) == len(names),
        f"different jobs of {path.name}",
        len(set(names)),
        f"{len(names)}, the number of all jobs",
        "remove repeated values from its lists",
    )
    return Sweep(
        str(content.get("name", path.stem)), str(content.get("claim", "")), tuple(jobs), race
    )


def _race(content: Mapping[str, Any], reduced: bool) -> Race:
    choose = content["choose"]
    report = content.get("report", {})
    for name, table, known in (
        ("choose", choose, ("seeds", "drop_behind", "draw")),
        ("report", report, ("draw", "apart")),
    ):
        for word in table:
            require(word in known, f"setting of [{name}]", word, "one of " + ", ".join(known))
    common = {**content.get("common", {}), **(content.get("reduced", {}) if reduced else {})}
    seeds = _listed(choose.get("seeds", []))
    reporting = _listed(common.get("seeds", [0]))
    require(seeds, "seeds of [choose]", seeds, "a list of at least one")
    require(
        not set(seeds) & set(reporting),
        "seeds of [choose]",
        seeds,
        f"other than {reporting}, which report",
    )
    return Race(
        tuple(reporting),
        choose.get("drop_behind"),
        choose.get("draw", DRAWS[0]),
        report.get("draw", DRAWS[0]),
        report.get("apart", 1.0),
    )


def _expand(choices: Mapping[str, Any], task: Mapping[str, Any], label: str) -> list[Job]:
    values = dict(choices)
    rounds = sorted(_listed(values.pop("rounds", [])))
    require(rounds, "rounds", rounds, "a list of rounds to score at")
    seeds = _listed(values.pop("seeds", [0]))
    names = sorted(values, key=lambda name: name in INNERMOST)
    axes = {name: _listed(values[name]) for name in names if values[name] != []}
    jobs = []
    for chosen in product(*axes.values()):
        for seed in seeds:
            given = dict(zip(axes, chosen, strict=True))
            given |= {"rounds": rounds[-1], "evaluate_at": rounds, "seed": seed}
            jobs.append(Job(Setting.from_json({"rng": "seeded", **given}), task, label))
    return jobs


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return list(value)
    return [value]


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = f"correct its TOML: {str(error).rstrip('.')}"
        raise InvalidParameter.of("sweep", "a TOML file", str(path), reason) from error
