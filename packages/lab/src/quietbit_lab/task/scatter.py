"""ScatterNet features, computed once and kept on disk.

Idea     a fixed wavelet transform turns images into features on which a linear model does well; it
         needs no training, hence no privacy. Channels are normalised in 27 groups per image,
         without learnt scales.
Symbols  J = 2 scales, 8 angles: 81 channels per colour at a quarter of the resolution.
Source   Tramèr and Boneh (ICLR 2021); Oyallon and Mallat (CVPR 2015); kymatio (Andreux et al.,
         2020).
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit_lab.task.dataset import Dataset
from quietbit_lab.task.feature_cache import Report, featured

__all__ = ["CHANNELS", "scatter", "scattered"]

SCALES = 2
ANGLES = 8
GROUPS = 27
CHANNELS = 81
BATCH = 500
EPSILON = 1e-5  # added to the variance of a group, as torch does
VERSION = 1


def scattered(
    dataset: Dataset, report: Report | None = None, folder: Path | None = None, device: str = "cpu"
) -> Dataset:
    """Return the data set with ScatterNet features in place of images, cached if possible.

    Where they are not, ``device`` computes them; a GPU's differ from a CPU's in the last digits of
    float32.
    """
    compute = partial(scatter, device=device)
    how = f"{VERSION}:{SCALES}:{ANGLES}:{GROUPS}:{EPSILON}"
    return featured(
        dataset, compute, how, kind="ScatterNet", batch=BATCH, report=report, folder=folder
    )


def scatter(
    images: NDArray[Any], normalised: bool = True, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return features (count, channels, height/4, width/4) of uint8 images."""
    require(
        images.dtype == np.uint8 and images.ndim in (3, 4),
        "images",
        images.shape,
        "uint8, with 3 or 4 axes",
    )
    torch, transform = _transform(images.shape[1:3], device)
    if images.ndim == 3:
        planes = images[:, None]
    else:
        planes = images.transpose(0, 3, 1, 2)
    with torch.no_grad():
        inputs = torch.from_numpy(np.ascontiguousarray(planes, dtype=np.float32)).to(device) / 255
        transformed = transform(inputs)  # count, colours, 81, height/4, width/4
        features = transformed.reshape(transformed.shape[0], -1, *transformed.shape[-2:])
        if normalised:
            features = torch.nn.functional.group_norm(features, GROUPS, eps=EPSILON)
        result: NDArray[np.float32] = features.contiguous().cpu().numpy()
    return result


@lru_cache(maxsize=2)
def _transform(shape: tuple[int, ...], device: str) -> tuple[Any, Any]:
    torch = require_module("torch", "lab[torch]")
    # The torch front end by its own module: the package's usual door opens every other back end
    # too.
    module = require_module("kymatio.scattering2d.frontend.torch_frontend", "lab[torch]")
    return torch, module.ScatteringTorch2D(J=SCALES, shape=tuple(shape), L=ANGLES).to(device)
