"""Events in dp_accounting's own terms: Gaussian, DP-SGD, DP-FTRL.

Idea     an event is a call whose arguments are numbers and events; its cost is that of the same
         event here. Sampling counts where it is Poisson; batches of a fixed size are priced as if
         nothing were sampled, and one sample may be in a batch once.
Symbols  sigma: noise multiplier of a node; a sample is in ceil(log2(steps + 1)) nodes of a tree.
Source   dp_accounting 0.6.0: dp_event.py; Kairouz et al. (2021), appendix D, for trees.
"""

from __future__ import annotations

import math

from attrs import evolve

from quietbit.check.law import TRAINING, Batches, Normal, Reason, Release, Run, law, nothing
from quietbit.check.values import MissingValue, Unknown, Use
from quietbit.target import Unit

__all__ = ["gaussian"]

COUNTED = ("SelfComposedDpEvent", "compose")
NEIGHBOURS = "events that are relative to one sample that is added or removed"


def _release(use: Use) -> Release:
    """Return the release of an event; without noise where it is not Gaussian."""
    inner = use.arguments.get("event")
    if use.name in COUNTED and isinstance(inner, Use):
        if use.repeated:
            raise MissingValue((Unknown("count", use.place),))
        count = use.count("count") if "count" in use.arguments else 1
        release = _release(inner)
        return evolve(release, times=release.times * count)
    if use.name in ("PoissonSampledDpEvent", "SampledWithoutReplacementDpEvent"):
        if not isinstance(inner, Use) or inner.name != "GaussianDpEvent":
            return nothing(use, Reason.UNKNOWN_CLASS)
        release = _release(inner)
        if use.name == "PoissonSampledDpEvent":
            rate = use.number("sampling_probability")
            return evolve(release, noise=Batches(inner.number("noise_multiplier"), rate))
        return release.because(Reason.FIXED_BATCHES)
    nodes = 1
    if use.name == "SingleEpochTreeAggregationDpEvent":
        nodes = math.ceil(math.log2(use.number("step_counts") + 1))
    elif use.name != "GaussianDpEvent":
        return nothing(use, Reason.UNKNOWN_CLASS)
    noise = Normal.of(math.sqrt(nodes), use.number("noise_multiplier"))
    return Release("update", use.name, use.place, noise, unit=Unit.SAMPLE, needs=(NEIGHBOURS,))


@law("PoissonSampledDpEvent", "sampling_probability event")
@law("SampledWithoutReplacementDpEvent", "source_dataset_size sample_size event")
@law("SelfComposedDpEvent", "event count")
@law("SingleEpochTreeAggregationDpEvent", "noise_multiplier step_counts")
@law("GaussianDpEvent", "noise_multiplier")
@law("compose", "event count")
@law("DpEvent")
def gaussian(use: Use, run: Run) -> list[Release]:
    """Price an event that stands in no other, of any class."""
    is_event = isinstance(use.arguments.get("event"), Use)
    if use.name == "compose" and not is_event and "dp_accounting" not in run.program.words:
        return []
    return [evolve(_release(use), way=TRAINING)]


@law("ComposedDpEvent", "events")
def composed(use: Use, run: Run) -> list[Release]:
    """Price a list of events, of which each counts."""
    events = use.value("events")
    if not isinstance(events, list) or not all(isinstance(event, Use) for event in events):
        return gaussian(evolve(use, name="DpEvent"), run)
    return [release for event in events for release in gaussian(event, run)]
