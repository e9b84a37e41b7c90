"""Solve the shipped designs anew: ``python -m quietbit.design.catalogue`` (``make catalogue``)."""

from __future__ import annotations

import sys
from pathlib import Path

from quietbit.design.catalogue import file_name, specs
from quietbit.design.certify import certify
from quietbit.design.solve import solve

if __name__ == "__main__":
    folder = Path(__file__).parent
    listed = list(specs())
    for count, spec in enumerate(listed, start=1):
        design = solve(spec, cache=False)
        if not certify(design).meets_spec:
            sys.exit(f"{spec} was not met; nothing was written for it.")
        design.save(folder / file_name(spec))
        print(f"{count}/{len(listed)} {file_name(spec)}", flush=True)
