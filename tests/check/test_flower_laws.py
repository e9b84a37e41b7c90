"""The laws of Flower's mods and strategies against the real classes, run on arrays."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from attrs import evolve
from scipy.stats import binom

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
from flwr.server import strategy as old
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.differential_privacy import clip_inputs_inplace
from flwr.supercore.task_identity import TaskIdentity

from check.kit import assert_normal, catches, job, reasons, row, verdict
from quietbit.check.flower import SHARE, NextClip
from quietbit.check.law import Normal
from quietbit.target import Adjacency, Trust

SIZE = 200_000
HEAD = "from flwr.clientapp import ClientApp\nfrom flwr.clientapp.mod import *\n"


@pytest.fixture(autouse=True)
def in_a_run() -> None:
    """Messages are made in a run."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def app(folder: Path, code: str, rounds: int = 1) -> Path:
    return job(folder, app_py=f"{HEAD}{code}\nstrategy.start(grid, num_rounds={rounds})\n")


def record(values) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.asarray(values))})


def reply_of(mod, update, **config):
    """What a mod lets out of an app that answers with this update of a zero model."""
    content = RecordDict({"arrays": record(np.zeros_like(update))})
    content["config"] = ConfigRecord(config or {"round": 1})
    message = Message(content, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"

    def call(asked, place):
        metrics = MetricRecord({"num-examples": 7, "accuracy": 0.25})
        return Message(RecordDict({"arrays": record(update), "metrics": metrics}), reply_to=asked)

    place = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return mod(message, place, call).content


def array(content) -> np.ndarray:
    return content["arrays"]["w"].numpy()


def local(folder: Path, *numbers: float, rounds: int = 1):
    arguments = ", ".join(map(str, numbers))
    return row(app(folder, f"app = ClientApp(mods=[LocalDpMod({arguments})])", rounds))


def deviation(found, clip: float) -> float:
    return clip / found.release.noise.mu


def test_the_local_mod_is_the_law(tmp_path):
    law = local(tmp_path, 2.0, 3.0, 4.0, 1e-5)
    content = reply_of(LocalDpMod(2.0, 3.0, 4.0, 1e-5), np.zeros(SIZE) + 1e-9)
    catches(assert_normal, array(content), deviation(law, 2.0))
    assert array(content).shape == (SIZE,)
    assert dict(content["metrics"]) == {"num-examples": 7, "accuracy": 0.25}  # in the clear
    silent = array(reply_of(LocalDpMod(2.0, 0.0, 4.0, 1e-5), np.ones(SIZE)))
    assert np.linalg.norm(silent) == pytest.approx(2.0)


@pytest.mark.parametrize("update", [0.0, math.nan, 5.0], ids=["zero", "nan", "a scalar"])
def test_what_the_clip_relies_on(tmp_path, update):
    """A zero update is an error of Flower's, NaN and scalars pass as they are: the law says so."""
    mod = LocalDpMod(1.0, 1.0, 1.0, 1e-5)
    if update == 0.0:
        with pytest.raises(ZeroDivisionError):
            reply_of(mod, np.zeros(3))
    elif update == 5.0:
        assert array(reply_of(mod, np.array(5.0))) == 5.0
    else:
        assert np.isnan(array(reply_of(mod, np.array([1.0, update])))).any()
    assert any("finite" in need for need in local(tmp_path, 1.0, 1.0, 1.0, 1e-5).release.needs)


@pytest.mark.parametrize(
    ("numbers", "rounds", "wanted"),
    [
        ((1.0, 1.0, 0.5, 1e-5), 1, set()),
        ((1.0, 1.0, 10.0, 1e-5), 1, {"FORMULA"}),
        ((1.0, 1e-4, 10.0, 1e-5), 1, {"SENSITIVITY"}),
        ((1.0, 1.0, 0.5, 1e-5), 20, {"PER_ROUND"}),
        ((1.0, 1e-12, 10.0, 1e-5), 1, {"SENSITIVITY", "ROUNDED"}),
        ((1.0, 0.0, 10.0, 1e-5), 1, {"SENSITIVITY", "NO_NOISE"}),
    ],
)
def test_why_the_local_mod_is_not_what_it_says(tmp_path, numbers, rounds, wanted):
    found = local(tmp_path, *numbers, rounds=rounds)
    assert reasons(found) == wanted
    assert (found.zero_out > numbers[2]) == bool(wanted)


def test_replacing_doubles_the_sensitivity(tmp_path):
    """Twice the clip at twice the noise is the same."""
    once = local(tmp_path / "a", 1.0, 1.0, 1.0, 1e-5)
    twice = local(tmp_path / "b", 1.0, 2.0, 1.0, 1e-5)
    assert twice.replace_one == pytest.approx(once.zero_out, rel=1e-9)


FIXED = (
    "strategy = {name}(FedAvg(), noise_multiplier=1.3, clipping_norm=2.0, num_sampled_clients=4, "
    "accountant=RdpAccountant(config))"
)
ADAPTIVE = (
    "{name}(FedAvg(), noise_multiplier=1.3, num_sampled_clients=40, initial_clipping_norm=2.0)"
)


def central(name: str, clients: int, update: float, multiplier: float = 1.3):
    """Return the noisy mean that a strategy makes of equal updates of a zero model."""
    kind = getattr(strategies, name)
    keywords = {"noise_multiplier": multiplier, "num_sampled_clients": clients}
    adaptive = "Adaptive" in name
    keywords["initial_clipping_norm" if adaptive else "clipping_norm"] = 2.0
    made = kind(FedAvg(), **keywords)
    made.current_arrays = record(np.zeros(SIZE))
    replies = []
    for node in range(clients):
        asked = Message(RecordDict(), dst_node_id=node + 1, message_type="train")
        asked.metadata.__dict__["_message_id"] = str(node + 1)
        metrics = MetricRecord({"num-examples": 1, "norm_bit": 1})
        content = RecordDict({"arrays": record(np.full(SIZE, update)), "metrics": metrics})
        replies.append(Message(content, reply_to=asked))
    arrays, metrics = made.aggregate_train(1, replies)
    return made, arrays["w"].numpy()


@pytest.mark.parametrize("side", ["Server", "Client"])
def test_a_fixed_clip_is_the_law(tmp_path, side):
    name = f"DifferentialPrivacy{side}SideFixedClipping"
    mod = "app = ClientApp(mods=[fixedclipping_mod])\n"
    law = row(app(tmp_path, mod + FIXED.format(name=name)))
    assert law.release.trust is Trust.CENTRAL
    _, mean = central(name, 4, 1e-12)
    catches(assert_normal, mean, deviation(law, 2.0) / 4)  # the mean of 4 moves by clip / 4


def test_the_server_clips_and_clients_clip():
    _, mean = central("DifferentialPrivacyServerSideFixedClipping", 4, 1.0, multiplier=1e-9)
    assert np.linalg.norm(mean) == pytest.approx(2.0, rel=1e-3)
    for mod in (fixedclipping_mod, adaptiveclipping_mod):
        content = reply_of(mod, np.ones(SIZE), clipping_norm=2.0)
        assert np.linalg.norm(array(content)) == pytest.approx(2.0)


@pytest.mark.parametrize("side", ["Server", "Client"])
def test_an_adaptive_clip_makes_noise_for_the_next_clip(tmp_path, side):
    """All are clipped, so Flower shrinks the clip, and then adds noise for the smaller one."""
    name = f"DifferentialPrivacy{side}SideAdaptiveClipping"
    mod = "app = ClientApp(mods=[adaptiveclipping_mod])\n"
    law = row(app(tmp_path, mod + ADAPTIVE.format(name=name)))
    assert reasons(law) == {"MOVING_CLIP", "COUNT", "WEIGHTS"}
    made, mean = central(name, 40, 1e-12 if side == "Client" else 1.0)
    if side == "Server":
        mean = mean - mean.mean()
    noise = law.release.noise
    # One client may be all of it, or nothing.
    catches(assert_normal, mean, 2 * made.clipping_norm / noise.mu)
    assert made.clipped_count_stddev == noise.spread
    # The clip shrinks as the law says of the count and the noise on it.
    fractions = np.array([made._noisy_fraction(40, 40) for _ in range(30_000)])
    catches(assert_normal, fractions - 1, noise.spread / noise.clients)
    before = made.clipping_norm
    made._geometric_update(fractions[0])
    shrunk = math.exp(-noise.rate * (fractions[0] - noise.quantile))
    assert made.clipping_norm == pytest.approx(before * shrunk)


def test_a_moving_clip_costs_what_its_worst_round_does():
    """Simulated: but for a share of delta, no round has less noise than the law's."""
    noise = NextClip(1 / 1.3, 2.0, 40, 0.2, 0.5)
    times, delta = 20, 1e-2
    rng = np.random.default_rng(7)
    counts = 40 + noise.spread * rng.standard_normal((100_000, times))  # all are clipped
    mu = noise.mu * np.exp(noise.rate * (counts / 40 - noise.quantile))
    total = np.hypot(mu, 1 / noise.spread)
    most = noise.most(times, delta)
    far = int((total.max(axis=1) > most).sum())
    assert far <= binom.isf(1e-9, 100_000, SHARE * delta)
    assert (total.max(axis=1) > 0.97 * most).any()  # and it is not far off
    assert noise.proven(Adjacency.ZERO_OUT, times, delta) >= Normal(most).proven(
        Adjacency.ZERO_OUT, times, delta
    )
    assert evolve(noise, spread=0.0).proven(Adjacency.ZERO_OUT, times, delta) == math.inf


OWN = {
    "DPFedAvgFixed": "{name}(FedAdam(), num_sampled_clients=4, clip_norm=2.0, noise_multiplier=1.3)",
    "DPFedAvgAdaptive": (
        "{name}(FedAdam(), num_sampled_clients=40, init_clip_norm=2.0, noise_multiplier=1.3)"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OWN)
def test_noise_on_every_update_is_the_law(tmp_path, name):
    """The server adds it before any strategy sees the updates, for the clip of this round."""
    code = OWN[name].format(name=name)
    assert reasons(row(app(tmp_path / "bare", code))) == {"NO_CLIP"}
    wrapped = "client = DPFedAvgNumPyClient(mine)\n" + code
    law = row(app(tmp_path, wrapped)).release.noise
    clients, kept = (4 if name == "DPFedAvgFixed" else 40), []

    class Keep:
        def aggregate_fit(self, number, results, failures):
            kept.extend(parameters_to_ndarrays(result.parameters)[0] for _, result in results)
            return None, {}

    norm = {"init_clip_norm" if clients == 40 else "clip_norm": 2.0}
    made = getattr(old, name)(Keep(), clients, noise_multiplier=1.3, **norm)
    answers = [(SimpleNamespace(cid="1"), reply_without(made))]
    made.aggregate_fit(1, answers, [])
    count = 1 / made.clip_count_stddev if clients == 40 else 0.0
    catches(assert_normal, kept[0], 2.0 / math.sqrt(law.mu**2 - count**2))


def reply_without(made) -> FitRes:
    """Return what a wrapped client sends: its update clipped, and whether it was not."""
    inner = SimpleNamespace(fit=lambda parameters, config: ([np.ones(SIZE)], 7, {}))
    config = {"dpfedavg_clip_norm": 2.0, "dpfedavg_adaptive_clip_enabled": True}
    arrays, _, metrics = DPFedAvgNumPyClient(inner).fit([np.zeros(SIZE)], config)
    assert np.linalg.norm(arrays[0]) == pytest.approx(2.0)
    assert metrics["dpfedavg_norm_bit"] is False
    status = Status(Code.OK, "")
    return FitRes(status, ndarrays_to_parameters([np.zeros(SIZE)]), 7, metrics)


def test_an_accountant_of_flowers_weighs_all_the_same(tmp_path):
    """Without one FedAvg lets one client be all of the mean or nothing of it: two clips apart."""
    name = "DifferentialPrivacyServerSideFixedClipping"
    equal = row(app(tmp_path / "a", FIXED.format(name=name)))
    assert reasons(equal) == set()
    text = FIXED.format(name=name).replace(", accountant=RdpAccountant(config)", "")
    weighted = row(app(tmp_path / "b", text))
    assert reasons(weighted) == {"WEIGHTS"}
    assert weighted.release.noise.mu == pytest.approx(2 * 4 * equal.release.noise.mu)
    assert weighted.zero_out == weighted.replace_one
    mine, other = np.ones(1) * 2.0, np.ones(1) * -2.0  # at the clip, with most of the weight
    with_me = np.average([mine, other], axis=0, weights=[1e9, 1])
    without = np.average([0 * mine, other], axis=0, weights=[0, 1])
    assert abs(with_me - without) == pytest.approx(2 * 2.0)
    for found in (weighted, equal):  # what outputs refute is what equal weights attain
        refuted = found.release.refuted(Adjacency.ZERO_OUT, 1e-5)
        assert refuted == pytest.approx(equal.zero_out, rel=1e-5)


@pytest.mark.parametrize("on", [True, False])
def test_the_mod_of_flip_reads_its_keys(tmp_path, on):
    """Its defaults are a sensitivity of 1e-4 at a clip of 1, and epsilon 10: a deviation of 5e-5."""
    switch = "" if on else "dp-enabled = false\n"
    config = f"[tool.flwr.app.config]\ndp-delta = 1e-5\n{switch}"
    code = "app = ClientApp()\n@app.train(mods=[flip_local_dp_mod])\ndef train(m, c): pass\n"
    code += "strategy.start(grid, num_rounds=1)\n"
    found = row(job(tmp_path, pyproject_toml=config, app_py=HEAD + code))
    if on:
        assert deviation(found, 1.0) == pytest.approx(4.845e-5, rel=1e-3)
        assert 2e8 < found.zero_out < 3e8
    else:
        assert reasons(found) == {"SWITCHED_OFF"}
    with patch.dict("os.environ"):  # Flower's own helper, which FLIP's mod calls
        update = [np.ones(100)]
        clip_inputs_inplace(update, 1.0)
        assert np.linalg.norm(update[0]) == pytest.approx(1.0)


def test_the_claim_is_read_under_the_adjacency_that_is_asked_for(tmp_path):
    folder = app(tmp_path, "app = ClientApp(mods=[LocalDpMod(1.0, 1.0, 0.9, 1e-5)])")
    assert verdict(folder, accepted=["metrics"]).holds
    replaced = verdict(folder, accepted=["metrics"], adjacency=Adjacency.REPLACE_ONE)
    assert replaced.holds is False
