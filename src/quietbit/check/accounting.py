"""Events in dp_accounting's own terms: Gaussian, DP-SGD, DP-FTRL.

Idea     an event is a call whose arguments are numbers and events; its cost is that of the same
         event here. Sampling counts where it is Poisson; batches of a fixed size are priced as if
         nothing were sampled.
Symbols  sigma: noise multiplier of a node; a sample is in ceil(log2(steps + 1)) nodes of a tree.
Source   dp_accounting 0.6.0: dp_event.py; Kairouz et al. (2021), appendix D, for trees.
"""

from __future__ import annotations

import math

from attrs import evolve

from quietbit.check.law import Batches, Normal, Reason, Release, Run, Why, law, nothing
from quietbit.check.values import Use
from quietbit.target import Unit

__all__ = ["gaussian"]

NEIGHBOURS = "events that are relative to one sample that is added or removed"


def _release(use: Use) -> Release:
    """Return the release of an event; without noise where it is not Gaussian."""
    inner = use.arguments.get("event")
    if not isinstance(inner, Use):
        nodes = 1
        if use.name == "SingleEpochTreeAggregationDpEvent":
            nodes = math.ceil(math.log2(use.number("step_counts") + 1))
        elif use.name != "GaussianDpEvent":
            return nothing("update", use, Reason.UNKNOWN_CLASS)
        noise = Normal.of(math.sqrt(nodes), use.number("noise_multiplier"))
        return Release("update", use.name, use.place, noise, unit=Unit.SAMPLE, needs=(NEIGHBOURS,))
    release = _release(inner)
    if use.name == "SelfComposedDpEvent":
        return evolve(release, times=release.times * use.count("count"))
    if use.name != "PoissonSampledDpEvent":
        return evolve(release, why=(*release.why, Why(Reason.FIXED_BATCHES, use.place)))
    if inner.name != "GaussianDpEvent":
        return nothing("update", use, Reason.UNKNOWN_CLASS)
    rate = use.number("sampling_probability")
    return evolve(release, noise=Batches(inner.number("noise_multiplier"), rate))


@law("PoissonSampledDpEvent", "sampling_probability event")
@law("SampledWithoutReplacementDpEvent", "source_dataset_size sample_size event")
@law("SampledWithReplacementDpEvent", "source_dataset_size sample_size event")
@law("SelfComposedDpEvent", "event count")
@law("SingleEpochTreeAggregationDpEvent", "noise_multiplier step_counts")
@law("GaussianDpEvent", "noise_multiplier")
def gaussian(use: Use, run: Run) -> list[Release]:
    """Price an event that stands in no other."""
    return [_release(use)]
