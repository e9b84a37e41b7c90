"""Weighted means of payloads, by public numbers of examples.

Idea     a client with ten times the examples should move the mean ten times as far. A payload must not say so: the
         number is public, named by the owner's policy, and the server multiplies what it decodes. That is
         post-processing, and costs no privacy beyond the number itself. Integer sums have no weights, so payloads of
         equal weight share a sum, and weights are rounded to quarters of a power of two.
Symbols  n_c: examples of a client; N: ``most``, beyond which weights do not grow, so that no claim moves a mean
         without bound; w_c = min(n_c, N) / N, rounded, from 2^-10 to 1; (sum w)^2 / sum w^2: the effective cohort.

The noise in a weighted mean of equal noises is that of a plain mean over the effective cohort (Kish 1965).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np
from attrs import define, field

from quietbit._typing import FloatVector
from quietbit.errors import refuse_payload
from quietbit.mechanism.base import Answers
from quietbit.wire.aggregate import Aggregator

__all__ = ["EXAMPLES", "WeightedMean", "effective", "pooled", "weight_of"]

EXAMPLES = "num-examples"  # the metric by which Flower's apps report their number, and policies name it
STEPS, SMALLEST = 4, -10  # weights per power of two, and the least power


def weight_of(examples: Any, most: int | None) -> float:
    """Return the weight of a client's release; 1 where all weigh alike. A number below 1, or a missing one, is refused.

    >>> [round(weight_of(n, 1000), 3) for n in (1, 250, 900, 1000, 10**9)], weight_of(None, None)
    ([0.001, 0.25, 0.841, 1.0, 1.0], 1.0)
    """
    if most is None:
        return 1.0
    if not isinstance(examples, int | float) or not 1 <= examples < math.inf:
        refuse_payload("number of examples", "told, and at least 1, where releases are weighted by it", examples)
    return float(2.0 ** (max(STEPS * SMALLEST, round(STEPS * math.log2(min(examples, most) / most))) / STEPS))


def effective(weights: Iterable[float]) -> float:
    """Return the effective cohort: the number of equal weights whose mean is as noisy."""
    known = np.fromiter(weights, dtype=np.float64)
    return float(known.sum() ** 2 / np.square(known).sum()) if known.size else 0.0


def pooled(means: Iterable[WeightedMean]) -> Any:
    """Return the mean over all payloads of several means, for example of rounds with other rows; None without any."""
    known = [mean for mean in means if mean.weight]
    total = sum(mean.weight for mean in known)
    if len(known) == 1:
        return known[0].mean()
    return sum(mean.weight / total * mean.mean() for mean in known) if known else None


@final
@define(eq=False)
class WeightedMean:
    """A streaming weighted mean; ``make`` starts the sum of one weight, which takes its memory."""

    make: Callable[[], Aggregator]
    _parts: dict[float, Aggregator] = field(factory=dict, init=False)

    def add(self, payload: Any, weight: float = 1.0) -> None:
        """Check one payload and add it, as `Aggregator.add` does."""
        if weight not in self._parts:
            self._parts[weight] = self.make()
        self._parts[weight].add(payload)

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return sum(weight * part.count for weight, part in self._parts.items())

    def mean(self) -> Any:
        """Return the weighted mean of the payloads so far; refuse if there are none."""
        return self._pooled(Aggregator.mean)

    def kept(self) -> FloatVector:
        """Return the same mean on the rows that all clients of the round keep."""
        return np.asarray(self._pooled(Aggregator.kept))

    def answers(self) -> Answers | None:
        """Return what scouts, who all weigh alike, answered about the clip; None without answers."""
        return next((part.answers() for part in self._parts.values()), None)

    def _pooled(self, read: Callable[[Aggregator], Any]) -> Any:
        used = {weight: part for weight, part in self._parts.items() if part.count}
        if len(used) < 2:
            return read(next(iter(used.values()), None) or self.make())
        return sum(weight * part.count / self.weight * read(part) for weight, part in used.items())
