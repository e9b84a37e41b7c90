"""The mechanisms and updates behind the golden payloads; run once to write files that are missing.

Files of a released version are never written again: a change of any byte is a new version of the
format.

    PYTHONPATH=tests python tests/core/golden/payload_cases.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quietbit.design.profile import Profile
from quietbit.design.table import Design, DesignSpec
from quietbit.kernel.rng import seeded_rng
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.mechanism.rotation import Rotation
from quietbit.mechanism.scouts import Scouted
from quietbit.mechanism.vector import VectorMVU
from quietbit.wire.uplink import Uplink
from quietbit_lab.baseline.dithered import DitheredMVU
from quietbit_lab.baseline.noise import Laplace, Sign
from quietbit_lab.baseline.skellam import Skellam

FOLDER = Path(__file__).parent / "payloads"
DIMENSION = 21
ROUND, POINTED = Ball(Norm.L2, DIMENSION), Ball(Norm.L1, DIMENSION)
CLIP = 1.5
UPDATE = np.linspace(-1.0, 2.0, DIMENSION).astype(np.float32)  # longer than the clip


def design(bits: int) -> Design:
    """A row of multiples of 2^-8 and its mirror image, with evenly spaced outputs."""
    weights = np.arange(1, 2**bits + 1, dtype=np.float64)
    row = weights * 2.0**-8
    row[-1] += 1 - row.sum()
    return Design(
        DesignSpec(2, bits, 4.0), np.stack([row[::-1], row]), np.arange(2**bits) / (2**bits - 1)
    )


CASES: dict[str, Any] = {
    "v1_imvu_1bit": InterpolatedMVU(design(1), ROUND, beta=2.0, decoder="alphabet"),
    "v1_imvu_2bit_l1": InterpolatedMVU(design(2), POINTED, decoder="alphabet"),
    "v1_imvu_3bit_clamped": InterpolatedMVU(
        design(3), ROUND, beta=3.0, clamp=True, decoder="unbiased-at-zero"
    ),
    "v1_imvu_4bit": InterpolatedMVU(design(4), ROUND, decoder="alphabet"),
    "v1_mvu_2bit": DitheredMVU(design(2), ROUND),
    "v1_sign_gaussian": Sign(Gaussian(ROUND, 0.5)),
    "v1_gaussian": Gaussian(ROUND, 0.5),
    "v1_laplace": Laplace(POINTED, 0.5),
    "v1_skellam_8bit": Skellam(ROUND, 0.5, bits=8, rotation_seed=3),
    "v1_skellam_16bit": Skellam(ROUND, 0.5),
    "v2_vmvu_seed": VectorMVU(
        Profile.from_weights([0.5], [1.0, 4.0]), ROUND, keep=16, rotation_seed=3
    ),
    "clip_imvu_3bit": InterpolatedMVU(design(3), ROUND, decoder="alphabet"),
    "clip_vmvu_seed": Scouted(
        VectorMVU(Profile.from_weights([0.5], [1.0, 4.0]), ROUND, keep=16, rotation_seed=3), 20, 0.5
    ),
    "rotated_imvu_1bit": InterpolatedMVU(
        design(1), ROUND, beta=2.0, clamp=True, rotation=Rotation(8, seed=3)
    ),
    "rotated_imvu_3bit_exact": InterpolatedMVU(design(3), ROUND, rotation=Rotation(16, exact=True)),
    "rows_vmvu_shared": VectorMVU(
        Profile.from_weights([0.5], [1.0, 4.0]), ROUND, keep=16, rotation_seed=3, rows=5
    ),
    "clip_gaussian": Gaussian(ROUND, 0.5),
}
CLIPS = {"v1_gaussian": 1.0, "v1_laplace": 1.0, "clip_imvu_3bit": 0.75, "clip_vmvu_seed": 6.0}


def uplink(name: str) -> Uplink:
    """The way of a case's payloads, at its clip."""
    return Uplink(CASES[name], clip=CLIPS.get(name, CLIP))


def payload(name: str) -> bytes:
    """What the case sends, with words seeded by its place in the list."""
    names = [*CASES]
    names.insert(names.index("v2_vmvu_seed") + 1, "v2_vmvu_direct")  # gone; others keep their seed
    return uplink(name).send(UPDATE, seeded_rng(names.index(name)))


def main() -> None:
    """Write the files that do not exist yet."""
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(payload(name))


if __name__ == "__main__":
    main()
