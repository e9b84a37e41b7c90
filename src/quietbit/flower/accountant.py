"""Flower's own privacy accounting, exact: a `PrivacyAccountant` for its central wrappers, without a package more.

Idea     Flower's strategies with noise on the server take an accountant of Gaussian releases. Its own adds Rényi
         divergences; Gaussians compose exactly, so this one reports the smallest epsilon that is true, rounded up.
Symbols  sigma: an event's noise multiplier, the noise's deviation over the sensitivity; mu^2 = sum of 1 / sigma^2.
Source   Balle and Wang (ICML 2018), Theorem 8, as in `privacy.conversion`; the protocol is `flwr.serverapp`'s, of 1.41.

It holds for noise that was fixed in advance, and is as the formula means it: Flower draws it with numpy, in floating
point. Refused: events sampled by chance. A server knows whom it has asked: against it there is no amplification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent, SamplingMethod

from quietbit.errors import InvalidParameter, check_int, check_real, require
from quietbit.privacy.conversion import gaussian_epsilon_upper, gaussian_log_delta, round_up
from quietbit.target import check_delta

__all__ = ["GaussianAccountant"]

METHOD, VERSION = "quietbit exact gaussian", 1
SLACK = 1e-9  # of log delta: more than the closed form's rounding


@final
class GaussianAccountant:
    """``DifferentialPrivacyServerSideFixedClipping(..., accountant=GaussianAccountant(config))``."""

    def __init__(self, config: PrivacyConfig) -> None:
        """Begin with nothing released; a config whose sampling is to amplify is refused."""
        require(isinstance(config, PrivacyConfig), "config", type(config).__name__, "Flower's PrivacyConfig")
        plain = config.sampling_method is SamplingMethod.NO_AMPLIFICATION
        require(
            plain, "sampling_method", config.sampling_method.value, "no-amplification (a server knows whom it asks)"
        )
        self._config = config
        self._events: list[tuple[GaussianPrivacyEvent, int]] = []

    @property
    def config(self) -> PrivacyConfig:
        """What was configured."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many releases were composed."""
        return sum(count for _, count in self._events)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Note ``count`` releases alike."""
        self._events.append(self._checked(event, count))

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at this delta, rounded up."""
        return gaussian_epsilon_upper(self._slope(self._events), check_delta(delta))

    def get_delta(self, epsilon: float) -> float:
        """Return the smallest delta at this epsilon, rounded up."""
        number = check_real(epsilon, "epsilon", above=-math.ulp(0.0))
        slope = self._slope(self._events)
        return min(1.0, math.exp(gaussian_log_delta(number, math.sqrt(2 * slope)) + SLACK)) if slope else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return the account at this delta, the config's unless given."""
        at = self._config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, METHOD)

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether these releases on top would cost more than the limit, the config's unless given."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise InvalidParameter("max_epsilon must be given, here or in the PrivacyConfig.")
        after = self._slope([*self._events, self._checked(event, count)])
        return not gaussian_epsilon_upper(after, self._config.target_delta) <= check_real(limit, "max_epsilon")

    def state_dict(self) -> dict[str, object]:
        """Return what was composed, as plain values."""
        events = [[e.noise_multiplier, e.sample_size, e.population_size, count] for e, count in self._events]
        return {"method": METHOD, "version": VERSION, "config": self._public(), "events": events}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken; a state of another accountant or config is refused."""
        said = {name: state.get(name) for name in ("method", "version", "config")}
        known = {"method": METHOD, "version": VERSION, "config": self._public()}
        require(said == known, "state of the accountant", said, f"one of {known}")
        found: Any = state.get("events")
        try:
            events = [(GaussianPrivacyEvent(sigma, sample, crowd), count) for sigma, sample, crowd, count in found]
        except (TypeError, ValueError) as error:
            raise InvalidParameter(f"events of the state must be four numbers each, got {found!r}.") from error
        self._events = [self._checked(event, count) for event, count in events]

    def _checked(self, event: GaussianPrivacyEvent, count: int) -> tuple[GaussianPrivacyEvent, int]:
        require(isinstance(event, GaussianPrivacyEvent), "event", type(event).__name__, "a GaussianPrivacyEvent")
        crowd = self._config.population_size
        require(event.population_size == crowd, "population_size of the event", event.population_size, f"{crowd}")
        return event, check_int(count, "count", 1)

    def _public(self) -> dict[str, object]:
        config = self._config
        return {
            "target_delta": config.target_delta,
            "population_size": config.population_size,
            "neighboring_relation": config.neighboring_relation.value,
            "max_epsilon": config.max_epsilon,
        }

    @staticmethod
    def _slope(events: list[tuple[GaussianPrivacyEvent, int]]) -> float:
        """mu^2 / 2 of all releases together, rounded up."""
        terms = [round_up(count / (2 * event.noise_multiplier**2), 4e-16) for event, count in events]
        return round_up(math.fsum(terms), 4e-16) if terms else 0.0
