"""Flower 1.41: mods and strategies with a privacy claim.

Idea     a local mod protects from the server; the six strategies add noise to the mean, on a server
         that must be trusted. The mean moves by clip / clients where all weigh the same, and by the
         clip where their own numbers of examples weigh them. Metrics beside the arrays get no
         noise.
Symbols  z: noise_multiplier; n: num_sampled_clients; the noise of the mean is z clip / n.
Source   flwr 1.41.0: supercore/differential_privacy.py, clientapp/mod/localdp_mod.py and
         centraldp_mods.py, serverapp/strategy/dp_fixed_clipping.py and dp_adaptive_clipping.py;
         Andrew et al. (2021).
"""

from __future__ import annotations

from attrs import evolve

from quietbit.check.gaussian import FINITE, by_formula
from quietbit.check.law import Normal, Reason, Release, Run, Why, law, nothing
from quietbit.check.program import Program
from quietbit.check.reader import Sources
from quietbit.check.values import Given, Use, Value
from quietbit.target import Trust

__all__ = ["config", "mods", "rounds"]

FLIP_MOD = "flip_local_dp_mod"
ROUNDS = "num-server-rounds"
TABLE = ".tool.flwr.app.config."
FIXED = "strategy noise_multiplier clipping_norm num_sampled_clients accountant"
ADAPTIVE = (
    "strategy noise_multiplier num_sampled_clients initial_clipping_norm target_clipped_quantile "
    "clip_norm_lr clipped_count_stddev"
)
ALL_ANSWER = "an answer of every sampled client: the noise is not raised for those that are missing"
# FLIP's names of the keys in a run config, with its defaults.
FLIP = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5, "enabled": True}


def config(sources: Sources) -> dict[str, Value]:
    """Return the run config of an app, with dots between its tables."""
    flat: dict[str, Value] = {}
    for source in sources.called("pyproject"):
        flat |= _flat(source.values(), "")
    return {key.removeprefix(TABLE): flat[key] for key in flat if key.startswith(TABLE)}


def _flat(table: Value, head: str) -> dict[str, Value]:
    if not isinstance(table, dict):
        return {head: table}
    flat: dict[str, Value] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{head}.{key}")
    return flat


def rounds(program: Program) -> list[Value]:
    """Return the numbers of rounds that an app names, or else its run config."""
    usual = [program.config[key] for key in (ROUNDS,) if key in program.config]
    return program.keywords("num_rounds") or usual


def mods(program: Program, given: Given) -> list[Use]:
    """Return the mod that an app names without calling it."""
    place = program.words.get(FLIP_MOD)
    return [] if place is None else [Use(FLIP_MOD, {}, place, given)]


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


def _central(use: Use, run: Run, mu: float) -> Release:
    """Return the release of a noisy mean; ``mu`` is one client's where all weigh the same."""
    accounted = use.arguments.get("accountant") is not None  # it weighs all the same
    weights = run.program.keywords("num-examples")
    noise = Normal(mu)
    why: tuple[Why, ...] = ()
    if not accounted and (not weights or any(weight != 1 for weight in weights)):
        noise = Normal(use.number("num_sampled_clients") * mu, attained=mu)
        why = (Why(Reason.WEIGHTS, use.place, f"with equal weights mu = {mu:.3g} per round"),)
    return Release(
        "update",
        use.name,
        use.place,
        noise,
        run.rounds,
        trust=Trust.CENTRAL,
        why=why,
        needs=(FINITE,) if accounted else (ALL_ANSWER, FINITE),
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
    return [_central(use, run, 1 / multiplier)]


@law("DifferentialPrivacyClientSideFixedClipping", FIXED)
def client_fixed(use: Use, run: Run) -> list[Release]:
    """Price a fixed clip that clients apply."""
    return _clipped_on_clients(use, run, "fixedclipping_mod") or server_fixed(use, run)


@law("DifferentialPrivacyServerSideAdaptiveClipping", ADAPTIVE)
def server_adaptive(use: Use, run: Run) -> list[Release]:
    """Say that a clip which follows a noisy count of clipped clients has no proof.

    The noise of a round is made for the clip of the next, of which noise decides how small it is; a
    zero update changes the count by one, not by half.
    """
    if use.number("noise_multiplier") == 0:
        return [nothing("update", use, Reason.NO_NOISE)]
    return [nothing("update", use, Reason.MOVING_CLIP, Reason.COUNT)]


@law("DifferentialPrivacyClientSideAdaptiveClipping", ADAPTIVE)
def client_adaptive(use: Use, run: Run) -> list[Release]:
    """Price a moving clip that clients apply."""
    return _clipped_on_clients(use, run, "adaptiveclipping_mod") or server_adaptive(use, run)


@law("SecAggPlusWorkflow")
@law("SecAggWorkflow")
def masked_sums(use: Use, run: Run) -> list[Release]:
    """Say that masks add no noise to the sum."""
    return [nothing("update", use, Reason.ENCRYPTED, Reason.NO_NOISE)]
