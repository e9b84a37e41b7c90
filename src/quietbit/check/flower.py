"""Flower 1.41: mods and strategies with a privacy claim.

Idea     a local mod protects from the server; strategies add noise to the mean, on a server that
         must be trusted. With an accountant Flower checks that all clients weigh the same and
         answer, and the mean moves by clip / clients; else one client may be all of the mean or,
         without data, nothing of it, which moves the mean by twice the clip. Either holds for means
         alone, not for what FedAdam or Krum make of the updates. Metrics beside the arrays get no
         noise.
Symbols  z: noise_multiplier; n: num_sampled_clients; the noise of the mean is z clip / n. s:
         deviation of the noise on the number of clipped updates; lr, q: clip_norm_lr and
         target_clipped_quantile.
Source   flwr 1.41.0: supercore/differential_privacy.py, clientapp/mod/localdp_mod.py and
         centraldp_mods.py, serverapp/strategy/dp_fixed_clipping.py and dp_adaptive_clipping.py,
         server/strategy/dpfedavg_fixed.py and dpfedavg_adaptive.py; Andrew et al. (2021).
"""

from __future__ import annotations

import math
from typing import final

from attrs import evolve, frozen
from scipy.special import ndtri

from quietbit.check.gaussian import FINITE, by_formula
from quietbit.check.law import (
    CLIENTS,
    LEAST_NOISE,
    NUMPY_SEEDS,
    Noise,
    Normal,
    Reason,
    Release,
    Run,
    buffers,
    law,
    nothing,
    seeded,
)
from quietbit.check.program import Program
from quietbit.check.reader import Sources, refuse
from quietbit.check.values import Unknown, Use, Value
from quietbit.errors import require
from quietbit.target import Adjacency, Trust

__all__ = ["PARAMETERS", "config", "rounds"]

FLIP_MOD = "flip_local_dp_mod"
ROUNDS = "num-server-rounds"
TABLE = ".tool.flwr.app.config."
FIXED = "strategy noise_multiplier clipping_norm num_sampled_clients accountant"
ADAPTIVE = (
    "strategy noise_multiplier num_sampled_clients initial_clipping_norm target_clipped_quantile "
    "clip_norm_lr clipped_count_stddev"
)
MEANS = ("FedAvg", "FedProx")
PLAIN = (
    *MEANS,
    *("FedAdam", "FedAdagrad", "FedYogi", "FedAvgM", "FedMedian", "FedTrimmedAvg"),
    *("QFedAvg", "Krum", "MultiKrum", "Bulyan"),
)
STARTS = ("ServerApp", "ServerAppComponents", "start_server", "start_simulation")
# Mods that leave the arrays' values alone.
MASKS = ("secaggplus_mod", "secagg_mod")
HARMLESS = (*MASKS, "message_size_mod", "arrays_size_mod")
CLIPS = ("fixedclipping_mod", "adaptiveclipping_mod")
# Of what no law is about, but what laws ask for.
PARAMETERS = {
    **dict.fromkeys((*PLAIN, *STARTS, *HARMLESS, *CLIPS, FLIP_MOD, "RdpAccountant"), ()),
    "start": ("grid", "initial_arrays", "num_rounds"),
    "ServerConfig": ("num_rounds",),
}
ALL_ANSWER = "an answer of every sampled client: the noise is not raised for those that are missing"
OUTER_MODS = "other mods around it, which add nothing of the data"
ROUNDED = "masked sums whose rounding is small beside the clip"
SHARE = 0.1  # of delta, for counts that are far out
WHOLE = 2  # clips between two means, where a client's weight is its own
# FLIP's names of the keys in a run config, with its defaults.
FLIP = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5, "enabled": True}


def config(sources: Sources) -> dict[str, Value]:
    """Return the run config of an app, with dots between its tables."""
    flat = [_flat(source.values(), "") for source in sources.called("pyproject")]
    tables = [
        {key.removeprefix(TABLE): table[key] for key in table if key.startswith(TABLE)}
        for table in flat
    ]
    if len([table for table in tables if table]) > 1:
        refuse(sources.title, "has several apps: give the folder of one")
    return next((table for table in tables if table), {})


def _flat(table: Value, head: str) -> dict[str, Value]:
    if not isinstance(table, dict):
        return {head: table}
    flat: dict[str, Value] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{head}.{key}")
    return flat


def rounds(program: Program) -> list[Value]:
    """Return the numbers of rounds that an app names, or else its run config."""
    started = [use for use in program.uses("start") if use.arguments]
    counts = [use.arguments.get("num_rounds", 3) for use in started]
    counts += [use.arguments.get("num_rounds", 1) for use in program.uses("ServerConfig")]
    counts += [Unknown("rounds", use.place) for use in started if use.repeated]
    usual = [program.config[key] for key in (ROUNDS,) if key in program.config]
    return counts or program.keywords("num_rounds") or usual


def _mods(use: Use) -> list[Value]:
    mods = use.arguments.get("mods") or []
    return mods if isinstance(mods, list) else [mods]


def _chains(run: Run, app: Use) -> list[list[Value]]:
    """Return the mods around the training functions of an app, from the outermost."""
    handlers = run.program.uses("@train")
    return [[*_mods(app), *_mods(one)] for one in handlers or [app]]


@law("ClientApp", "client_fn mods")
def client_app(use: Use, run: Run) -> list[Release]:
    """Ask the laws of the mods around each training function of all apps."""
    releases = [nothing(use, Reason.IN_CLEAR, what="metrics"), *buffers(run)]
    for query in run.program.uses("@query"):
        releases.append(nothing(query, Reason.IN_CLEAR, what="answers"))
    for number, mods in enumerate(_chains(run, use)):
        found = []
        for place, mod in enumerate(mods):
            if getattr(mod, "name", "") in ("LocalDpMod", FLIP_MOD):
                own = [OUTER_MODS] * any(not isinstance(outer, Use) for outer in mods[:place])
                found += [one.relying(*own) for one in _local(mod, run)]
        found = found or [nothing(use, Reason.NO_CLIP, Reason.NO_NOISE)]
        releases += [
            evolve(release, way=CLIENTS, chain=f"{use.place!r} {number}") for release in found
        ]
    return releases


@law("start_client")
@law("start_numpy_client")
def client(use: Use, run: Run) -> list[Release]:
    """Say that a client without an app has no mods."""
    release = nothing(use, Reason.NO_CLIP, Reason.NO_NOISE)
    metrics = nothing(use, Reason.IN_CLEAR, what="metrics")
    return [evolve(release, way=CLIENTS, chain=repr(use.place)), metrics]


def _local(use: Use, run: Run) -> list[Release]:
    """Price a mod that clips and adds noise on a client."""
    if use.name == FLIP_MOD:  # its parameters are keys of the run config
        arguments = {}
        for name, usual in FLIP.items():
            arguments[name] = run.program.config.get(f"dp-{name.replace('_', '-')}", usual)
        use = evolve(use, arguments=arguments)
        if not arguments["enabled"]:
            return [nothing(use, Reason.SWITCHED_OFF)]
    return seeded(use, run, *NUMPY_SEEDS) or [by_formula(use, run)]


@law("LocalDpMod", "clipping_norm sensitivity epsilon delta")
def local_dp(use: Use, run: Run) -> list[Release]:
    """Say that a mod which no app has protects nothing."""
    return [nothing(use, Reason.NOT_APPLIED, detail="no app has this mod")]


def _central(use: Use, run: Run, noise: Noise, *needs: str) -> list[Release]:
    """Return the release of a noisy mean, unless what is started is something else."""
    bad = seeded(use, run, *NUMPY_SEEDS)
    started = run.program.owners("start")
    started += [start.arguments.get("strategy") for start in run.program.uses(*STARTS)]
    started += run.program.uses(*PLAIN)
    others = [other for other in started if isinstance(other, Use) and other.name in PLAIN]
    for other in others[:1]:
        bad.append(nothing(other, Reason.NO_NOISE, detail=f"{other.name} is started"))
    release = Release(
        "update",
        use.name,
        use.place,
        noise,
        run.rounds,
        trust=Trust.CENTRAL,
        needs=(*needs, FINITE),
    )
    releases = [release, *bad]
    return [evolve(one, way="server", chain=repr(one.place)) for one in releases]


def _unclipped(use: Use, run: Run, mod: str) -> list[Release]:
    """Return what is wrong where clients must clip, and have no mod that does it last."""
    apps = run.program.uses("ClientApp")
    chains = [chain for app in apps for chain in _chains(run, app)]
    for mods in chains or [[]]:
        chain = [getattr(one, "name", "") for one in mods]
        outer = chain[: chain.index(mod)] if mod in chain else [""]
        if not set(outer) <= set(HARMLESS):
            detail = f"clients need {mod} as the last mod that changes arrays"
            return [nothing(use, Reason.NO_CLIP, detail=detail)]
    return []


def _masked(run: Run, releases: list[Release]) -> list[Release]:
    """Note that masks round what was clipped."""
    if run.program.words.keys().isdisjoint(MASKS):
        return releases
    return [release.relying(ROUNDED) for release in releases]


@law("DifferentialPrivacyServerSideFixedClipping", FIXED)
def server_fixed(use: Use, run: Run) -> list[Release]:
    """Price a fixed clip."""
    names = ("noise_multiplier", "clipping_norm", "num_sampled_clients")
    multiplier, clip, clients = use.numbers(*names)
    if multiplier * clip / clients < LEAST_NOISE:
        return [nothing(use, Reason.ROUNDED if multiplier else Reason.NO_NOISE)]
    mu = 1 / multiplier
    if isinstance(use.value("accountant", None), Use):
        return _central(use, run, Normal(mu))
    noise = Normal(WHOLE * clients * mu, attained=mu, alike=True)
    return _weighted(use, run, noise, mu)


def _weighted(use: Use, run: Run, noise: Noise, mu: float, *needs: str) -> list[Release]:
    """Return the release of a mean of which one client may be all."""
    strategy = use.arguments.get("strategy")
    if getattr(strategy, "name", "") not in MEANS:
        return [nothing(use, Reason.STRATEGY)]
    detail = f"with equal weights mu = {mu:.3g} per round"
    releases = _central(use, run, noise, *needs)
    return [release.because(Reason.WEIGHTS, detail) for release in releases]


@law("DifferentialPrivacyClientSideFixedClipping", FIXED)
def client_fixed(use: Use, run: Run) -> list[Release]:
    """Price a fixed clip that clients apply."""
    return _unclipped(use, run, "fixedclipping_mod") or _masked(run, server_fixed(use, run))


@final
@frozen
class NextClip:
    """Noise of a mean, made for the clip of the next round, which a noisy count decides.

    The next clip is exp(-lr (count / n - q)) times that of this round. No count is above n, and but
    for a share of delta no noise on it is above k deviations in any round. So mu is at most
    exp(lr (1 + k s / n - q)) times what it is for the clip of this round, in every round, whatever
    came before; releasing the count costs 1 / s. Neighbours of both kinds move the mean, whose
    weights are the clients' own, and the count alike.
    """

    mu: float  # of the mean, had it noise for the clip of its round
    spread: float  # s
    clients: float  # n
    rate: float  # lr
    quantile: float  # q

    def most(self, times: int, delta: float) -> float:
        """Return what a round costs at most, but for a share of delta."""
        far = -float(ndtri(SHARE * delta / times)) * self.spread / self.clients
        mu = self.mu * math.exp(self.rate * (1 + far - self.quantile))
        return math.hypot(mu, 1 / self.spread)

    def proven(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return the epsilon of rounds of which each knows the ones before."""
        if self.spread == 0:
            return math.inf
        noise = Normal(self.most(times, delta), alike=True)
        return noise.proven(adjacency, times, (1 - SHARE) * delta)

    def refuted(self, adjacency: Adjacency, times: int, delta: float) -> float:
        """Return nothing: no pair is tried."""
        return 0.0


def _raised(use: Use, multiplier: float, spread: float) -> float:
    """Return the noise multiplier that engines use to pay for a count with noise, too."""
    name = f"noise_multiplier ({use.place})"
    require(multiplier < 2 * spread, name, multiplier, "below twice the deviation of the count")
    return float((multiplier**-2 - (2 * spread) ** -2) ** -0.5)


@law("DifferentialPrivacyServerSideAdaptiveClipping", ADAPTIVE)
def server_adaptive(use: Use, run: Run) -> list[Release]:
    """Price a clip that follows a noisy count of clipped clients."""
    multiplier, clients = use.numbers("noise_multiplier", "num_sampled_clients")
    if multiplier == 0:
        return [nothing(use, Reason.NO_NOISE)]
    usual = use.value("clipped_count_stddev", None)
    spread = clients / 20 if usual is None else use.number("clipped_count_stddev")
    quantile = use.number("target_clipped_quantile", 0.5)
    rate = use.number("clip_norm_lr", 0.2)
    mu = 1 / _raised(use, multiplier, spread)
    noise = NextClip(WHOLE * clients * mu, spread, clients, rate, quantile)
    releases = _weighted(use, run, noise, mu, ALL_ANSWER)
    return [one.because(Reason.MOVING_CLIP).because(Reason.COUNT) for one in releases]


@law("DifferentialPrivacyClientSideAdaptiveClipping", ADAPTIVE)
def client_adaptive(use: Use, run: Run) -> list[Release]:
    """Price a moving clip that clients apply."""
    return _unclipped(use, run, "adaptiveclipping_mod") or _masked(run, server_adaptive(use, run))


@law("DPFedAvgFixed", "strategy num_sampled_clients clip_norm noise_multiplier server_side_noising")
@law(
    "DPFedAvgAdaptive",
    "strategy num_sampled_clients init_clip_norm noise_multiplier server_side_noising clip_norm_lr "
    "clip_norm_target_quantile clip_count_stddev",
)
def own_noise(use: Use, run: Run) -> list[Release]:
    """Price noise that the server adds to every update, with z clip / sqrt(n), before any mean.

    A count with noise of deviation s follows, where the clip adapts to it: for the next round.
    """
    clients = use.number("num_sampled_clients")
    multiplier = use.number("noise_multiplier", 1.0)
    if multiplier == 0:
        return [nothing(use, Reason.NO_NOISE)]
    if "DPFedAvgNumPyClient" not in run.program.words:
        detail = "clients lack DPFedAvgNumPyClient"
        return [nothing(use, Reason.NO_CLIP, detail=detail)]
    count = 0.0
    if use.name == "DPFedAvgAdaptive":
        usual = use.value("clip_count_stddev", None)
        spread = clients / 20 if usual is None else use.number("clip_count_stddev")
        multiplier = _raised(use, multiplier, spread)
        count = 1 / spread
    noise = Normal(math.hypot(math.sqrt(clients) / multiplier, count))
    return _central(use, run, noise, "DPFedAvgNumPyClient around every client")


@law("SecAggPlusWorkflow")
@law("SecAggWorkflow")
def masked_sums(use: Use, run: Run) -> list[Release]:
    """Say that masks add no noise to the sum."""
    return [nothing(use, Reason.ENCRYPTED, Reason.NO_NOISE)]
