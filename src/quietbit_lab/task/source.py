"""Where data sets are, and how one knows that they are whole.

Idea     a folder named by ``--data`` or QUIETBIT_DATA, else ``shared/data`` beside or above the working
         folder; in it a folder per data set. What is missing or damaged is said in one sentence, with the
         command that brings it where there is one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import QuietbitError

__all__ = [
    "DamagedData",
    "MissingData",
    "cache_folder",
    "damaged",
    "data_folder",
    "find",
    "load_packed",
    "md5_of",
    "read_idx",
]

FETCHED = ("mnist", "cifar10", "fashion-mnist")
IDX_TYPES = {8: "u1", 12: ">i4"}


class MissingData(QuietbitError):
    """A data set that is not where it was looked for."""


class DamagedData(QuietbitError):
    """A data file that is not the one it should be."""


def data_folder(given: Path | None = None) -> Path:
    """The folder of data sets: the one given, QUIETBIT_DATA, or the nearest ``shared/data``; else ``data``."""
    if given is not None:
        return given
    named = os.environ.get("QUIETBIT_DATA")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here / "data", here / "shared" / "data", here.parent / "shared" / "data"):
        if folder.is_dir():
            return folder
    return here / "data"


def cache_folder() -> Path:
    """Where features are kept: ``QUIETBIT_CACHE``, or the user's cache folder."""
    override = os.environ.get("QUIETBIT_CACHE")
    base = Path(override) if override else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietbit"
    return base / "features"


def find(folder: Path, name: str, file: str) -> Path:
    """The path of a file of a data set; a missing one is said with the way to get it."""
    path = folder / name / file
    if not path.is_file():
        way = f"quietbit data get {name} --data {folder}" if name in FETCHED else "see experiments/README.md for it"
        raise MissingData(f"The file {file} of {name} is not in {folder / name}: {way}.")
    return path


def damaged(path: Path, rule: str, found: object) -> NoReturn:
    """Raise the one sentence for a file that is not what it should be."""
    raise DamagedData(f"The data file {path} is damaged: it must have {rule}, got {found}.")


def md5_of(path: Path) -> str:
    """The published kind of checksum; it guards against accidents, not against malice."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpacked(path: Path) -> bytes:
    """The content of a gzip or xz file, or of one that is not packed."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            return gzip.decompress(content)
        return lzma.decompress(content) if content[:6] == b"\xfd7zXZ\x00" else content
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        damaged(path, "a readable content", str(error).rstrip(".") or "the end of the file")


def read_idx(path: Path) -> NDArray[Any]:
    """An array in the IDX format, packed or not; the length must be exactly what its header says."""
    content = unpacked(path)
    head = content[:4]
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES or not 1 <= head[3] <= 4:
        damaged(path, "an IDX header", repr(head))
    kind: np.dtype[Any] = np.dtype(IDX_TYPES[head[2]])
    axes = head[3]
    start = 4 + 4 * axes
    shape = np.frombuffer(content[4:start], ">i4") if len(content) >= start else np.zeros(0)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != start + size:
        damaged(path, f"{start + size} bytes", len(content))
    return np.frombuffer(content, kind, offset=start).reshape(shape.astype(int).tolist())


def load_packed(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """An uint8 array in an xz-packed npy file, of exactly this shape."""
    try:
        array: NDArray[Any] = np.load(io.BytesIO(unpacked(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        damaged(path, "an array", str(error))
    if array.shape != shape or array.dtype != np.uint8:
        damaged(path, f"shape {shape} and type uint8", f"{array.shape} and {array.dtype}")
    return array
