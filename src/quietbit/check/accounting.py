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

from quietbit.check.law import Batches, Normal, Reason, Release, Run, Why, law
from quietbit.check.values import Use
from quietbit.errors import check_real
from quietbit.target import Unit

__all__ = ["gaussian"]

NEIGHBOURS = "events that are relative to one sample that is added or removed"
UNSAMPLED = Reason.FIXED_BATCHES


def _release(use: Use, run: Run) -> Release | None:
    """Return the release of an event; None for one whose noise is not Gaussian."""
    inner = use.arguments.get("event")
    if isinstance(inner, Use):
        release = _release(inner, run)
        if release is None:
            return None
        if use.name == "SelfComposedDpEvent":
            return evolve(release, times=release.times * use.count("count"))
        if use.name != "PoissonSampledDpEvent":
            return evolve(release, why=(*release.why, Why(UNSAMPLED, use.place)))
        rate = use.number("sampling_probability")
        simple = inner.name == "GaussianDpEvent"
        return (
            evolve(release, noise=Batches(inner.number("noise_multiplier"), rate))
            if simple
            else None
        )
    if use.name == "GaussianDpEvent":
        return _normal(use, use.number("noise_multiplier"), 1)
    if use.name == "SingleEpochTreeAggregationDpEvent":
        steps = use.value("step_counts")
        counts = steps if isinstance(steps, list) else [steps]
        name = f"step_counts ({use.place})"
        most = max((check_real(count, name) for count in counts), default=0.0)
        return _normal(use, use.number("noise_multiplier"), math.ceil(math.log2(most + 1)))
    return None


def _normal(use: Use, multiplier: float, nodes: int) -> Release:
    """Return the release of Gaussian noise on this many values that one sample is in."""
    noise = Normal.of(math.sqrt(nodes), multiplier)
    return Release("update", use.name, use.place, noise, unit=Unit.SAMPLE, needs=(NEIGHBOURS,))


@law("PoissonSampledDpEvent", "sampling_probability event")
@law("SampledWithoutReplacementDpEvent", "source_dataset_size sample_size event")
@law("SampledWithReplacementDpEvent", "source_dataset_size sample_size event")
@law("SelfComposedDpEvent", "event count")
@law("SingleEpochTreeAggregationDpEvent", "noise_multiplier step_counts")
@law("GaussianDpEvent", "noise_multiplier")
def gaussian(use: Use, run: Run) -> list[Release]:
    """Price an event that stands in no other."""
    release = _release(use, run)
    if release is None:
        return [Release("update", use.name, use.place, why=(Why(Reason.UNKNOWN_CLASS, use.place),))]
    return [release]
