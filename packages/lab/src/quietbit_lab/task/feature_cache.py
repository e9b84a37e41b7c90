"""Features computed once and kept on disk.

Idea     what turns images into features is fixed and public, and slow. The cache is a plain .npy
         file with a note beside it: what the features depend on (a *seal*), and a checksum of the
         content. A file that fails either is computed anew. Neither file is ever half written.
         Until all are there they are kept in pieces, each with a checksum of seal and content, so
         that a stopped computation goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietbit._files import cache_folder, write_json, write_whole
from quietbit.errors import QuietbitError
from quietbit_lab.task.dataset import Dataset, Examples

__all__ = ["Report", "featured"]

Report: TypeAlias = Callable[[float, str], None]
Compute: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float32]]
CHECKED = 8000  # examples read at once
PIECE = 1000  # examples in a piece, about
DIGEST = 32  # bytes before a piece's content


def featured(
    dataset: Dataset,
    compute: Compute,
    how: str,
    *,
    kind: str,
    batch: int,
    prefix: str = "",
    report: Report | None = None,
    folder: Path | None = None,
) -> Dataset:
    """Return the data set with ``compute``'s features in place of images, cached if possible.

    ``how`` says all that they depend on beside the images; ``kind`` names them in messages,
    ``prefix`` in file names.
    """
    tell = report or (lambda *_: None)
    place = folder or cache_folder("features")
    parts = []
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        name = f"{prefix}{dataset.name}-{split}"
        path = place / f"{name}.npy"
        note = place / f"{name}.json"
        seal = _seal(how, examples.inputs)
        if not _valid(path, note, seal):
            _write(
                path,
                note,
                seal,
                examples.inputs,
                compute,
                batch,
                lambda share, words: tell(share, words),
                kind,
            )
        parts.append(Examples(np.load(path, mmap_mode="r"), examples.labels))
    return Dataset(dataset.name, dataset.classes, parts[0], parts[1], dataset.writers)


def _write(
    path: Path,
    note: Path,
    seal: str,
    images: NDArray[Any],
    compute: Compute,
    batch: int,
    report: Report,
    kind: str,
) -> None:
    count = images.shape[0]
    shape = compute(images[:1]).shape[1:]
    size = max(batch, PIECE // batch * batch)
    pieces = [path.with_suffix(f".{start:08d}.piece") for start in range(0, count, size)]
    for place, piece in enumerate(pieces):
        first = place * size
        last = min(count, (place + 1) * size)
        if _read_piece(piece, seal, first, last, shape) is None:
            pieces_done = []
            for start in range(first, last, batch):
                done = min(last, start + batch)
                pieces_done.append(compute(images[start:done]).astype("<f4", copy=False).tobytes())
                report(done / count, f"{kind} features of {path.stem}, {done:,} of {count:,}")
            _write_piece(piece, seal, first, b"".join(pieces_done))
    digest = hashlib.sha256()

    def write(file: IO[bytes]) -> None:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        )
        for place, piece in enumerate(pieces):
            content = _read_piece(piece, seal, place * size, min(count, (place + 1) * size), shape)
            if content is None:
                raise QuietbitError(
                    f"Cannot read {piece}, which was written a moment ago: start again."
                )
            digest.update(content)
            file.write(content)

    note.unlink(missing_ok=True)
    write_whole(path, write)
    facts = {
        "images": seal,
        "features": digest.hexdigest(),
        "shape": [count, *shape],
        "bytes": path.stat().st_size,
    }
    write_json(note, facts)
    for piece in path.parent.glob(f"{path.stem}.*.piece"):
        piece.unlink(missing_ok=True)


def _write_piece(piece: Path, seal: str, first: int, content: bytes) -> None:
    write_whole(
        piece, lambda file: (file.write(_digest(seal, first, content)), file.write(content))
    )


def _read_piece(
    piece: Path, seal: str, first: int, last: int, shape: tuple[int, ...]
) -> bytes | None:
    """Return the bytes of a piece; None if it is missing, damaged, or of other images."""
    try:
        raw = piece.read_bytes()
    except OSError:
        return None
    content = raw[DIGEST:]
    right = len(content) == 4 * (last - first) * math.prod(shape) and raw[:DIGEST] == _digest(
        seal, first, content
    )
    return content if right else None


def _digest(seal: str, first: int, content: bytes) -> bytes:
    return hashlib.sha256(f"{seal}:{first}:".encode() + content).digest()


def _valid(path: Path, note: Path, seal: str) -> bool:
    """Whether the cache holds the features of these images, to the last byte."""
    try:
        facts = json.loads(note.read_text())
        if facts["images"] != seal or path.stat().st_size != facts["bytes"]:
            return False
        features = np.load(path, mmap_mode="r")
        digest = hashlib.sha256()
        for start in range(0, features.shape[0], CHECKED):
            digest.update(features[start : start + CHECKED].tobytes())
        return bool(digest.hexdigest() == facts["features"])
    except (OSError, ValueError, KeyError, TypeError, QuietbitError):
        return False


def _seal(how: str, images: NDArray[Any]) -> str:
    """Return a digest of what the features depend on: the images, and how they are made."""
    return hashlib.sha256(
        f"{how}:{images.shape}".encode() + np.ascontiguousarray(images).tobytes()
    ).hexdigest()
