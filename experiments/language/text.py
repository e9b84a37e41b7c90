"""Authors and public documents as rows of tokens.

Idea     `tokens.npz` has the authors' tokens and their split; `public.npz` (made by
         `public_text.py`) has documents that are not of their kind. VOLUNTEERS training authors,
         drawn by a fixed seed, play people whose text is public: they are no clients. Steps are
         chosen on the split `choose`, results are of `test`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

LENGTH = 512
VOLUNTEERS = 67
VOLUNTEER_SEED = 1
MANUALS = ("man1", "man3", "man5", "man7", "man8", "documentation")
LANGUAGES = ("de", "fr", "es", "it", "pl", "pt_BR", "nl")


@frozen(eq=False)
class Rows:
    """Texts of one group: tokens (n, T) with zeros behind the end, and lengths."""

    ids: Any
    lengths: Any

    @property
    def count(self) -> int:
        """How many texts there are."""
        return int(self.lengths.numel())

    def at(self, places: Any) -> Rows:
        """Return some of them."""
        return Rows(self.ids[places], self.lengths[places])

    def joined(self, other: Rows) -> Rows:
        """Return both groups."""
        return Rows(torch.cat((self.ids, other.ids)), torch.cat((self.lengths, other.lengths)))


@frozen(eq=False)
class Texts:
    """All groups of an experiment."""

    clients: Rows
    volunteers: Rows
    choose: Rows
    test: Rows
    public: dict[str, Rows]

    @property
    def manuals(self) -> Rows:
        """English manual pages and documentation."""
        return _joined([self.public[kind] for kind in MANUALS])

    @property
    def languages(self) -> Rows:
        """Manual pages in seven other languages, some of them translated in part."""
        return _joined([self.public[kind] for kind in LANGUAGES])


def read_texts(folder: Path, device: str, length: int = LENGTH, most: int | None = None) -> Texts:
    """Return all groups; ``most`` limits each for a trial."""
    with np.load(folder / "tokens.npz") as file:
        ids = file["ids"]
        offsets = file["offsets"]
        split = file["split"]
    documents = [ids[start:end] for start, end in pairwise(offsets)]
    train = np.flatnonzero(split == 0)
    order = np.random.default_rng(VOLUNTEER_SEED).permutation(train)
    groups = {
        "volunteers": np.sort(order[:VOLUNTEERS]),
        "clients": np.sort(order[VOLUNTEERS:]),
        "choose": np.flatnonzero(split == 1),
        "test": np.flatnonzero(split == 2),
    }
    rows = {}
    for name, places in groups.items():
        rows[name] = _rows([documents[place] for place in places[:most]], length, device)
    with np.load(folder / "public.npz") as file:
        ids = file["ids"]
        offsets = file["offsets"]
        kinds = file["kind"]
    documents = [ids[start:end] for start, end in pairwise(offsets)]
    public = {}
    for kind in MANUALS + LANGUAGES:
        places = np.flatnonzero(kinds == kind)[:most]
        public[kind] = _rows([documents[place] for place in places], length, device)
    return Texts(rows["clients"], rows["volunteers"], rows["choose"], rows["test"], public)


def _rows(documents: list[np.ndarray], length: int, device: str) -> Rows:
    ids = np.zeros((len(documents), length), dtype=np.int64)
    lengths = np.zeros(len(documents), dtype=np.int64)
    for place, document in enumerate(documents):
        part = document[:length]
        ids[place, : part.size] = part
        lengths[place] = part.size
    return Rows(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).to(device))


def _joined(groups: list[Rows]) -> Rows:
    whole = groups[0]
    for group in groups[1:]:
        whole = whole.joined(group)
    return whole
