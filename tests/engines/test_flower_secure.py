"""Masked sums through Flower's simulation runtime: ten nodes learn digits, some leave, and once
too many do.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("ray", reason="needs the flower extra: pip install 'quietbit[flower]'")
pytest.importorskip("sklearn", reason="needs quietbit-lab: pip install ./packages/lab")
pytest.importorskip("cryptography", reason="needs the all extra: pip install 'quietbit[all]'")

from engines.simulation import simulate_app
from plans import engine_plan
from quietbit.kernel.client_rng import seeded_client_rng
from quietbit.secagg.plan import masked_size
from quietbit.wire.payload import Payload
from quietbit.wire.uplink import Uplink

pytestmark = pytest.mark.long  # without the engine: tests/federation/contract/test_sums.py
APP = Path(__file__).parent / "secure_app"
sys.path.insert(0, str(APP))
from secure_digits.task import CLIP, DIMENSION, LOST, UNHEARD, problem, update  # noqa: E402

SETTINGS = engine_plan(
    mechanism="imvu",
    clip=CLIP,
    epsilon=30.0,
    adjacency="zero-out",
    releases=4,
    trust="secure-aggregation",
    adversary="active",
    threshold=7,
    honest_clients=6,
    timeout=120.0,
)
ROUNDS, FAILED, NODES = 4, 3, range(10)


def missing(number, *steps):
    return {p for gone in (LOST, UNHEARD) for step in steps for p in gone.get((number, step), ())}


@pytest.fixture(scope="module")
def mechanism():
    return SETTINGS.mechanism_for(DIMENSION)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """One simulation for all tests: what the server and the nodes left behind."""
    folder = tmp_path_factory.mktemp("secure")
    results = folder / "results"
    results.mkdir()
    simulate_app(APP, folder, nodes=10, workers=1, config={"results": json.dumps(str(results))})
    files = sorted(results.glob("node-*.jsonl"))
    return {
        "models": np.load(results / "models.npy"),
        "report": json.loads((results / "report.json").read_text()),
        "notes": [json.loads(line) for path in files for line in path.read_text().splitlines()],
    }


def test_every_masked_sum_is_the_plain_sum_of_those_who_stayed_bit_for_bit(outcome, mechanism):
    """Codes are drawn again here from the same words and added in the open."""
    words, model = seeded_client_rng(3), problem().initial(0)
    assert np.array_equal(outcome["models"][0], model)
    for number in range(1, ROUNDS + 1):
        stayed = [p for p in NODES if p not in missing(number, "keys", "shares", "vector")]
        entry = outcome["report"]["rounds"][number - 1]
        assert entry["answered"] == len(stayed)
        if number != FAILED:
            wide, total = model.astype(np.float64), np.zeros(DIMENSION, dtype=np.int64)
            for partition in stayed:
                learnt = wide - (wide - update(model, partition))
                payload = Uplink(mechanism, clip=CLIP).send(learnt, words(number - 1, partition))
                total += Payload.from_bytes(payload).codes()
            mean = mechanism.mean_from_sum(total, len(stayed)) * CLIP
            model = (wide - mean).astype(np.float32)
        assert np.array_equal(outcome["models"][number], model)
    assert problem().evaluate(model).accuracy > 0.5  # three sums; a guess is right one time in ten


def test_bytes_and_records_that_leave_a_node(outcome):
    answered = [note for note in outcome["notes"] if not note["error"]]
    assert len(answered) == len(outcome["notes"])
    vectors = [note for note in answered if note["step"] == "vector"]
    assert all(note["records"] == {"quietbit": ["release"]} for note in vectors)
    assert all(
        n["records"] == {"quietbit-sum": ["answer", "step"]}
        for n in answered
        if n["step"] != "vector"
    )
    size = masked_size(10, DIMENSION)
    assert size == 24 + 4 * (DIMENSION + 16) // 8  # sums of ten ones: 4 bits
    assert all(size + 64 < note["serialised"] <= size + 64 + 1024 for note in vectors)
    assert all(
        entry["uplink_payload"] == entry["answered"] * (size + 64)
        for entry in outcome["report"]["rounds"]
    )
    most = {"identity": 32, "keys": 176, "shares": 9 * 84, "confirm": 64, "unmask": 4 + 10 * 20}
    assert all(
        note["serialised"] <= most[note["step"]] + 1024
        for note in answered
        if note["step"] != "vector"
    )
