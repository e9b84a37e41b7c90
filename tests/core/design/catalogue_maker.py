"""The shipped designs and profiles: what is listed, and how it is solved anew.

PYTHONPATH=src:tests python -m core.design.catalogue_maker       (make catalogue)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from quietbit import design
from quietbit.design.certify import certify
from quietbit.design.profile import Profile
from quietbit.design.solve import file_name, specs
from quietbit.mechanism.solve_profile import certified_profile
from quietbit.target import Adjacency, Target
from quietbit_lab.design.ascent import propose
from quietbit_lab.design.search import solve

EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
RELEASES = (1, 2, 3, 5, 10, 20, 50)
DELTAS = (1e-5, 1e-6)
ORDER = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)


def catalogue_targets() -> Iterator[Target]:
    """Every target of the shipped profiles, in the order it is listed."""
    for adjacency in ORDER:
        for epsilon in EPSILONS:
            yield Target(epsilon, 0.0, adjacency)
            for delta in DELTAS:
                for releases in RELEASES:
                    yield Target(epsilon, delta, adjacency, releases=releases)
            # Large files, and slow to solve: one delta is enough.
            yield Target(epsilon, DELTAS[0], adjacency, releases=200)


def catalogue_lines(solved: Iterator[tuple[Target, Profile]]) -> dict[str, str]:
    """Return the text of each catalogue file by its adjacency: one line per target."""
    lines: dict[Adjacency, list[str]] = {adjacency: [] for adjacency in ORDER}
    for target, profile in solved:
        words = {"delta": target.delta, "epsilon": target.epsilon, "releases": target.releases}
        entry = {
            **words,
            "identity": profile.identity(),
            "profile": json.loads(profile.canonical()),
        }
        lines[target.adjacency].append(
            json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
        )
    return {adjacency.value: "\n".join(listed) + "\n" for adjacency, listed in lines.items()}


def make_designs(folder: Path) -> None:
    """Solve every design that is listed, and write it."""
    listed = list(specs())
    for count, spec in enumerate(listed, start=1):
        solved = solve(spec, cache=False)
        if not certify(solved).meets_spec:
            sys.exit(f"{spec} was not met; nothing was written for it.")
        solved.save(folder / file_name(spec))
        print(f"{count}/{len(listed)} {file_name(spec)}", flush=True)


def make_profiles(folder: Path) -> None:
    """Solve every profile that is listed, and write the two files."""
    for adjacency, text in catalogue_lines(
        (one, certified_profile(propose(one), one)) for one in catalogue_targets()
    ).items():
        (folder / f"{adjacency}.jsonl").write_text(text, encoding="ascii")


if __name__ == "__main__":
    make_designs(Path(design.__file__).parent / "catalogue")
    make_profiles(Path(design.__file__).parent / "profiles")
