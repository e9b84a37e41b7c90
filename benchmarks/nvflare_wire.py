"""NVFlare's uplink: plain FedAvg and quietbit's one bit, in bytes of a result as NVFlare serialises it.

Idea     a client's runner, engine and filters are NVFlare's own, without its network (the harness
         of the unit tests); the result is taken where NVFlare hands it to its messenger, context
         included, and serialised as it is there. Large arrays travel beside their message, in
         messages of their own: here they count with it, heads not.

    python benchmarks/nvflare_wire.py
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # sites without a network

SIZES = (650, 100_000, 1_000_000)


def main() -> None:
    kit = importlib.import_module("engines.nvflare.kit")
    logging.disable(logging.ERROR)
    print(f"{'bytes of a result':22}" + "".join(f"{size:>12,}" for size in SIZES))
    for name, filters in (("FedAvg, nothing private", [None, None]), ("quietbit, one bit", None)):
        found = []
        for size in SIZES:
            task = kit.Server().asks(arrays={"weight": np.zeros(size, np.float32)})
            found.append(len(kit.fobs.dumps(kit.Site(kit.trained(), filters=filters).does(task))))
        print(f"{name:22}" + "".join(f"{size:>12,}" for size in found))


if __name__ == "__main__":
    main()
