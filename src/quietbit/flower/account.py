"""The server's account: what every node was asked, what it answered, what may have left it.

Idea     the server cannot know whether a release that did not arrive was never made or was lost, so every question is
         counted as a release unless the node said that it made none. Who was asked is counted per node and round by
         round: in a first round not all nodes may be there yet.

For a node that keeps its id through the run this is an upper bound on what it released in the run, and equal to the
node's own ledger where nothing was lost. A SuperNode that restarts may come back under another id and is then another
node here; what it spent in other runs is not known here at all. The node's own ledger knows both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from quietbit.privacy.guarantee import Adjacency, Guarantee, Trust, Unit
from quietbit.privacy.release import Release

__all__ = ["Account", "Participation"]


@final
@dataclass(slots=True)
class Participation:
    """Counts of one node: questions, valid releases, replies that said no, releases that were refused."""

    asked: int = 0
    answered: int = 0
    declined: int = 0
    refused: int = 0

    @property
    def releases(self) -> int:
        """The most releases that this node can have made."""
        return self.asked - self.declined


@final
class Account:
    """Participation of all nodes of a run, priced."""

    def __init__(self, adjacency: Adjacency, delta: float, trust: Trust = Trust.LOCAL) -> None:
        """Start with nobody; ``trust`` is the one that curves are about."""
        self._adjacency, self._delta, self._trust = adjacency, delta, trust
        self.nodes: dict[int, Participation] = {}

    def node(self, number: int) -> Participation:
        """The counts of a node, from zero."""
        return self.nodes.setdefault(number, Participation())

    def guarantee(self, release: Release | None, releases: int) -> Guarantee:
        """What so many releases of one client cost."""
        if release is None:  # nobody has been asked yet
            return Guarantee(0.0, self._delta, Unit.CLIENT, self._adjacency, self._trust)
        return release.repeat(releases).guarantee(self._delta)  # the run's one mechanism, fixed before it began

    def worst(self, release: Release | None) -> Guarantee:
        """What holds for every client: that of the node with the most releases."""
        return self.guarantee(release, max((node.releases for node in self.nodes.values()), default=0))
