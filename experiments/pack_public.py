r"""What the task `efficientnet-head` needs beside the published weights, in one small file.

Idea     directions in six bits an entry, changes of scales and shifts in eight, each array with a
         step of its own.

    PYTHONPATH=src python experiments/pack_public.py small.npz tuned.npz --data data --out
    efficientnet_public.npz

``small.npz`` is made by ``public_features.py --small``, ``tuned.npz`` by ``tune_normalisation.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from quietbit_lab.task.efficientnet import FEATURES, SCALES, read_efficientnet

LARGEST = 31, 127  # of a direction's entries, of a change


def rounded(values: Any, most: int) -> tuple[Any, Any]:
    """Columns as whole numbers of at most ``most``, and their steps."""
    steps = np.abs(values).max(axis=0).astype(np.float32) / np.float32(most)
    return np.rint(values / np.maximum(steps, np.float32(1e-30))).astype(np.int8), steps


def main() -> None:
    """Read both files, round, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("small", type=Path)
    parser.add_argument("tuned", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    weights = read_efficientnet(given.data).weights
    with np.load(given.small) as kept, np.load(given.tuned) as tuned:
        basis, steps = rounded(kept["pca"][:, :FEATURES].astype(np.float32), LARGEST[0])
        changes = [rounded((tuned[name] - weights[name])[:, None], LARGEST[1]) for name in SCALES]
        np.savez_compressed(
            given.out,
            mean=kept["mean"],
            directions=basis,
            scales=steps,
            variances=kept["spread"][:FEATURES].astype(np.float32),
            changes=np.concatenate([change[:, 0] for change, _ in changes]),
            steps=np.concatenate([step for _, step in changes]),
        )
    print(f"{given.out}: {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
