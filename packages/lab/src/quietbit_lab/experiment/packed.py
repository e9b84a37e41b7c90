"""Results of a sweep in one small file, and back.

Idea     settings and points of every run, without what a whole record says about machines and
         bytes: a few hundred kilobytes for thousands of runs, which a repository keeps and pictures
         are drawn from. Unpacked into a folder they are results that a sweep continues.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from quietbit.errors import QuietbitError
from quietbit_lab.experiment.record import modern
from quietbit_lab.experiment.sweep import RESULTS

__all__ = ["Result", "pack", "read_results", "unpack"]

Result: TypeAlias = Mapping[str, Any]
KEPT = ("status", "settings", "task", "device", "draws")
POINT = ("round", "accuracy", "epsilon_upper")


def read_results(path: Path) -> list[Result]:
    """Return the lines of a file of results, packed or not, under current names."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            lines = [json.loads(line) for line in file]
        return [{**line, "record": modern(line["record"])} for line in lines]
    except OSError as error:
        raise QuietbitError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (EOFError, ValueError, KeyError, TypeError) as error:
        raise QuietbitError(
            f"{path} is not a file of results: a line is damaged. Name one that `quietbit sweep` "
            "or experiments/tables.py wrote."
        ) from error


def pack(results: Iterable[Result], path: Path) -> None:
    """Write them; equal results give equal bytes."""
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        for result in results:
            record = result["record"]
            points = [{name: point[name] for name in POINT} for point in record["points"]]
            shortened = {name: record[name] for name in KEPT} | {"points": points}
            line = {name: result[name] for name in ("sweep", "job", "label")} | {
                "record": shortened
            }
            line |= {"chooses": True} if result.get("chooses") else {}
            packed.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def unpack(results: Iterable[Result], folder: Path) -> None:
    """Results as a sweep leaves them; a folder that has some keeps its own."""
    if not (folder / RESULTS).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS).write_text("".join(json.dumps(result) + "\n" for result in results))
