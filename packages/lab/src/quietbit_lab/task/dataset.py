"""Examples, who owns which of them, where data sets are, and how one knows that they are whole.

Idea     inputs stay in the type and place they come in (bytes, or a file mapped into memory); a
         partition is two arrays, so that sixty thousand clients cost no more than five. Data sets
         lie in a folder named by ``--data`` or QUIETBIT_DATA, else ``shared/data`` beside or above
         the working folder, in a folder each. What is missing or damaged is said in one sentence,
         with the command that brings it where there is one.
Symbols  client c owns examples members[offsets[c]:offsets[c+1]].
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from quietbit.errors import QuietbitError, check_int, require

__all__ = [
    "FETCHED",
    "DamagedData",
    "Dataset",
    "Examples",
    "MissingData",
    "Partition",
    "damaged",
    "data_folder",
    "find",
    "load_packed",
    "md5_of",
    "read_idx",
    "unpacked",
]

FETCHED = ("mnist", "cifar10", "fashion-mnist", "efficientnet_lite0")
IDX_TYPES = {8: "u1", 12: ">i4"}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs with their labels, one of each per example."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse inputs and labels of different number."""
        same = self.inputs.shape[0] == self.labels.size and self.labels.size > 0
        require(
            same, "number of labels", self.labels.size, f"{self.inputs.shape[0]}, one per input"
        )

    @property
    def count(self) -> int:
        """How many examples there are."""
        return int(self.labels.size)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test examples of a task; ``writers`` has each training example's writer."""

    name: str
    classes: int
    train: Examples
    test: Examples
    writers: NDArray[np.int64] | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Which client owns which examples."""

    members: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def one_each(cls, count: int) -> Partition:
        """Every example is a client of its own."""
        return cls(np.arange(count, dtype=np.int64), np.arange(count + 1, dtype=np.int64))

    @classmethod
    def groups(cls, count: int, size: int, seed: int) -> Partition:
        """Draw clients of ``size`` examples at random; the rest joins the last client."""
        per_client = check_int(size, "samples per client", 1, count)
        members = np.random.default_rng([seed, 2]).permutation(count).astype(np.int64)
        offsets = np.arange(0, count + 1, per_client, dtype=np.int64)
        offsets[-1] = count
        return cls(members, offsets)

    @classmethod
    def by_owner(cls, owners: NDArray[np.int64], least: int = 1) -> Partition:
        """One client per owner; owners with fewer than ``least`` examples are left out."""
        members = np.argsort(owners, kind="stable").astype(np.int64)
        _, sizes = np.unique(owners, return_counts=True)
        keep = sizes >= least
        require(
            bool(keep.any()),
            "least samples of a client",
            least,
            f"at most {int(sizes.max())}, the size of the largest client",
        )
        members = members[np.repeat(keep, sizes)]
        return cls(members, np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of every client."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the examples of one client."""
        return self.members[self.offsets[client] : self.offsets[client + 1]]


class MissingData(QuietbitError):
    """A data set that is not where it was looked for."""


class DamagedData(QuietbitError):
    """A data file that is not the one it should be."""


def data_folder(given: Path | None = None) -> Path:
    """Return the data folder: the given one, QUIETBIT_DATA, a near ``shared/data``, ``data``."""
    if given is not None:
        return given
    named = os.environ.get("QUIETBIT_DATA")
    if named:
        return Path(named)
    current = Path.cwd()
    for folder in (
        current / "data",
        current / "shared" / "data",
        current.parent / "shared" / "data",
    ):
        if folder.is_dir():
            return folder
    return current / "data"


def find(folder: Path, name: str, file: str) -> Path:
    """Return the path of a file of a data set; if it is missing, the error says how to get it."""
    path = folder / name / file
    if not path.is_file():
        if name in FETCHED:
            way = f"quietbit data get {name} --data {folder}"
        else:
            way = "see experiments/README.md for it"
        raise MissingData(f"The file {file} of {name} is not in {folder / name}: {way}.")
    return path


def damaged(path: Path, rule: str, found: object) -> NoReturn:
    """Raise the one sentence for a file that is not what it should be."""
    raise DamagedData(f"The data file {path} is damaged: it must have {rule}, got {found}.")


def md5_of(path: Path) -> str:
    """Return the published kind of checksum, which guards against accidents, not against malice."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpacked(path: Path) -> bytes:
    """Return the content of a gzip or xz file, or of one that is not packed."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            return gzip.decompress(content)
        if content[:6] == b"\xfd7zXZ\x00":
            return lzma.decompress(content)
        return content
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        damaged(path, "a readable content", str(error).rstrip(".") or "the end of the file")


def read_idx(path: Path) -> NDArray[Any]:
    """Read an array in the IDX format, packed or not, of exactly its header's length."""
    content = unpacked(path)
    head = content[:4]
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES or not 1 <= head[3] <= 4:
        damaged(path, "an IDX header", repr(head))
    kind: np.dtype[Any] = np.dtype(IDX_TYPES[head[2]])
    axes = head[3]
    start = 4 + 4 * axes
    if len(content) >= start:
        shape = np.frombuffer(content[4:start], ">i4")
    else:
        shape = np.zeros(0)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != start + size:
        damaged(path, f"{start + size} bytes", len(content))
    return np.frombuffer(content, kind, offset=start).reshape(shape.astype(int).tolist())


def load_packed(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Load a uint8 array of exactly this shape from an xz-packed npy file."""
    try:
        array: NDArray[Any] = np.load(io.BytesIO(unpacked(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        damaged(path, "an array", str(error))
    if array.shape != shape or array.dtype != np.uint8:
        damaged(path, f"shape {shape} and type uint8", f"{array.shape} and {array.dtype}")
    return array
