"""Examples, and who owns which of them.

Idea     inputs stay in the type and place they come in (bytes, or a file mapped into memory); a partition is
         two arrays, so that sixty thousand clients cost no more than five.
Symbols  client c owns examples members[offsets[c]:offsets[c+1]].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietbit._validate import require, whole_number

__all__ = ["Dataset", "Examples", "Partition"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs with their labels, one of each per example."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse inputs and labels of different number."""
        same = self.inputs.shape[0] == self.labels.size and self.labels.size > 0
        require(same, "number of labels", self.labels.size, f"{self.inputs.shape[0]}, one per input")

    @property
    def count(self) -> int:
        """How many examples there are."""
        return int(self.labels.size)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Training and test examples of one task; ``writers`` says whose each training example is, if known."""

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
        """Clients of ``size`` examples each, drawn at random; what is left over joins the last client."""
        per_client = whole_number(size, "samples per client", 1, count)
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
        require(bool(keep.any()), "least samples of a client", least, f"at most {int(sizes.max())}, the most there are")
        members = members[np.repeat(keep, sizes)]
        return cls(members, np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of every client."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.int64]:
        """The examples of one client."""
        return self.members[self.offsets[client] : self.offsets[client + 1]]
