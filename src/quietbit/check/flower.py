"""Flower 1.41: mods and strategies with a privacy claim.

Idea     a local mod protects from the server; the six strategies add noise to the mean, on a server
         that must be trusted. The mean moves by clip / clients where all weigh the same, and by the
         clip where their own numbers of examples weigh them. Metrics beside the arrays get no
         noise.
Symbols  z: noise_multiplier; n: num_sampled_clients; s: clipped_count_stddev; the noise of the mean
         is z clip / n.
Source   flwr 1.41.0: supercore/differential_privacy.py, clientapp/mod/localdp_mod.py and
         centraldp_mods.py, serverapp/strategy/dp_fixed_clipping.py and dp_adaptive_clipping.py;
         Andrew et al. (2021).
"""

from __future__ import annotations

import math

from attrs import evolve
from scipy.special import ndtri

from quietbit.check.gaussian import FINITE, by_formula
from quietbit.check.law import Claim, Normal, Reason, Release, Run, Why, law, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources
from quietbit.check.values import Given, Use, Value
from quietbit.errors import require
from quietbit.target import Trust

__all__ = ["config", "mods"]

FLIP_MOD = "flip_local_dp_mod"
FIXED = "strategy noise_multiplier clipping_norm num_sampled_clients accountant"
ADAPTIVE = (
    "strategy noise_multiplier num_sampled_clients initial_clipping_norm target_clipped_quantile "
    "clip_norm_lr clipped_count_stddev"
)
ALL_ANSWER = "an answer of every sampled client: the noise is not raised for those that are missing"
# FLIP's names of the keys in a run config, with its defaults.
FLIP = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5, "enabled": True}
LOST = 1e-3  # of delta: for noise of the clipped count beyond what is priced


def config(sources: Sources) -> dict[str, Value]:
    """Return the run config of an app, with dots between its tables."""
    flat: dict[str, Value] = {}
    for source in sources.called("pyproject"):
        table = source.values()
        for key in ("tool", "flwr", "app", "config"):
            inner = table.get(key)
            table = inner if isinstance(inner, dict) else {}
        waiting = list(table.items())
        while waiting:
            key, value = waiting.pop()
            if isinstance(value, dict):
                waiting += [(f"{key}.{inner}", item) for inner, item in value.items()]
            else:
                flat[key] = value
    return flat


def mods(program: Program, given: Given) -> list[Use]:
    """Return the mod that an app names without calling it."""
    places = [program.words[name] for name in (FLIP_MOD,) if name in program.words]
    return [Use(FLIP_MOD, {}, place, given) for place in places]


@law("LocalDpMod", "clipping_norm sensitivity epsilon delta")
def local_dp(use: Use, run: Run) -> list[Release]:
    """Price the mod, whose sensitivity is a number of its own."""
    if not run.program.keywords("mods"):
        return [nothing("update", use, Reason.NOT_APPLIED, detail="no app has mods")]
    return [by_formula(use, run)]


@law(FLIP_MOD)
def flip_local_dp(use: Use, run: Run) -> list[Release]:
    """Price FLIP's mod, whose parameters are keys of the run config."""
    arguments = {}
    for name, usual in FLIP.items():
        arguments[name] = run.program.config.get(f"dp-{name.replace('_', '-')}", usual)
    if not arguments["enabled"]:
        return [nothing("update", use, Reason.SWITCHED_OFF)]
    return local_dp(evolve(use, arguments=arguments), run)


def _central(use: Use, run: Run, mu: float, count_mu: float, lost: float, *why: Why) -> Release:
    """Return the release of a noisy mean; ``mu`` is one client's where all weigh the same."""
    accounted = use.arguments.get("accountant") is not None
    weights = run.program.keywords("num-examples")
    same = bool(weights) and all(weight == weights[0] == 1 for weight in weights)
    equal = same or accounted
    share = 1.0
    needs: tuple[str, ...] = (ALL_ANSWER, FINITE)
    if equal:
        needs = needs[1:] if accounted else needs
    else:
        share = use.number("num_sampled_clients")
        why = (*why, Why(Reason.WEIGHTS, use.place, f"with equal weights mu = {mu:.3g} per round"))
    squares = [(radii * share * mu) ** 2 + count_mu**2 for radii in (1, 2)]
    attained = 0.0 if lost else mu  # the clip of the next round may also be larger
    noise = Normal(math.sqrt(squares[0]), math.sqrt(squares[1]), lost, attained)
    claim = None
    for spent in run.program.uses("PrivacyConfig"):
        if "max_epsilon" in spent.arguments and accounted:
            epsilon, delta = spent.numbers("max_epsilon", "target_delta")
            claim = Claim(epsilon, delta, per_round=False)
    return Release(
        "update",
        use.name,
        use.place,
        noise,
        run.rounds,
        trust=Trust.CENTRAL,
        claim=claim,
        why=why,
        needs=needs,
    )


def _clipped_on_clients(use: Use, run: Run, mod: str) -> list[Release]:
    """Return what is wrong where clients must clip, and have no mod that does."""
    if mod in run.program.words:
        return []
    return [nothing("update", use, Reason.NO_CLIP, detail=f"clients lack {mod}")]


@law("DifferentialPrivacyServerSideFixedClipping", FIXED)
def server_fixed(use: Use, run: Run) -> list[Release]:
    """Price a fixed clip."""
    multiplier, _, _ = use.numbers("noise_multiplier", "clipping_norm", "num_sampled_clients")
    if multiplier == 0:
        return [nothing("update", use, Reason.NO_NOISE)]
    return [_central(use, run, 1 / multiplier, 0.0, 0.0)]


@law("DifferentialPrivacyClientSideFixedClipping", FIXED)
def client_fixed(use: Use, run: Run) -> list[Release]:
    """Price a fixed clip that clients apply."""
    return _clipped_on_clients(use, run, "fixedclipping_mod") or server_fixed(use, run)


@law("DifferentialPrivacyServerSideAdaptiveClipping", ADAPTIVE)
def server_adaptive(use: Use, run: Run) -> list[Release]:
    """Price a clip that follows a noisy count of clipped clients.

    The strategy raises z so that 1 / z^2 = 1 / raised^2 + 1 / (2 s)^2; a zero update changes the
    count by one, not by half. The noise is for the new clip, which may be smaller than the one that
    was applied: by exp(-rate (fraction - quantile)), and fraction is at most 1 + t s / n but for a
    probability of Phi(-t).
    """
    multiplier, clients = use.numbers("noise_multiplier", "num_sampled_clients")
    if multiplier == 0:
        return [nothing("update", use, Reason.NO_NOISE)]
    deviation = clients / 20
    if use.value("clipped_count_stddev", None) is not None:
        deviation = use.number("clipped_count_stddev")
    square = multiplier**-2 - (2 * deviation) ** -2 if deviation else -math.inf
    rule = f"below {2 * deviation:g}, twice the deviation of the count"
    require(square > 0, f"noise_multiplier ({use.place})", multiplier, rule)
    lost = run.delta * LOST / run.rounds
    fraction = 1 - float(ndtri(lost)) * deviation / clients
    rate = use.number("clip_norm_lr", 0.2)
    shrinks = math.exp(rate * (fraction - use.number("target_clipped_quantile", 0.5)))
    why = (Why(Reason.MOVING_CLIP, use.place), Why(Reason.COUNT, use.place))
    mean = _central(use, run, math.sqrt(square) * max(1.0, shrinks), 1 / deviation, lost, *why)
    return [mean]


@law("DifferentialPrivacyClientSideAdaptiveClipping", ADAPTIVE)
def client_adaptive(use: Use, run: Run) -> list[Release]:
    """Price a moving clip that clients apply."""
    return _clipped_on_clients(use, run, "adaptiveclipping_mod") or server_adaptive(use, run)


@law("SecAggPlusWorkflow")
@law("SecAggWorkflow")
def masked_sums(use: Use, run: Run) -> list[Release]:
    """Say that masks add no noise to the sum."""
    return [nothing("update", use, Reason.ENCRYPTED, Reason.NO_NOISE)]


@law("PrivacyConfig", "target_delta population_size")
def accountant(use: Use, run: Run) -> list[Release]:
    """Say nothing: the strategy that keeps this account is asked."""
    return []
