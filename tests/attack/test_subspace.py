"""Directions chosen in malice by a server: no release is unclipped or unpriced."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from engines.flower.kit import DIMENSION, app, be_the_server, context, gated, model
from federation.node.makers import books, write_policy
from quietbit.federation.messages import DECLINED, ENCLOSED, join_pieces, request_record
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.wire.payload import Framed
from quietbit.wire.uplink import Uplink
from spaces import space_of_seed

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
K = 4
CLIP = 1.0
CONFIG = {
    "quietbit.mechanism": "gaussian",
    "quietbit.mechanism.noise-multiplier": 0.001,
    "quietbit.clip": CLIP,
    "quietbit.epsilon": 1e9,
    "quietbit.adjacency": "replace-one",
    "quietbit.subspace": K,
}
MECHANISM = Gaussian(Ball(Norm.L2, K), 0.001)
GOOD = space_of_seed(1, K, DIMENSION).directions


def changed(place, value):
    """The directions with other numbers at a place."""
    other = GOOD.copy()
    other[place] = value
    return other


# What a server may send in place of orthonormal rows.
BAD = {
    "not orthonormal": np.random.default_rng(0).normal(size=GOOD.shape).astype(np.float32),
    "long": (GOOD * 1e6).astype(np.float32),
    "huge": np.full(GOOD.shape, 3e38, dtype=np.float32),
    "short": (GOOD * 1e-6).astype(np.float32),
    "zero": np.zeros_like(GOOD),
    "nan": changed((1, 3), np.nan),
    "infinite": changed((0, 0), np.inf),
    "repeated": changed(1, GOOD[0]),
    "too many": space_of_seed(1, K + 1, DIMENSION).directions,
    "too few": GOOD[:-1].copy(),
    "of another model": space_of_seed(1, K, DIMENSION + 1).directions,
    "flat": GOOD.reshape(-1).copy(),
    "deep": GOOD[None].copy(),
    "empty": np.zeros((0, DIMENSION), dtype=np.float32),
    "doubles": GOOD.astype(np.float64),
    "whole numbers": np.eye(K, DIMENSION, dtype=np.int64),
    "none": None,
}


def request(number, basis=None, mechanism=MECHANISM):
    """A server's request, with directions where there are any."""
    be_the_server()
    record = ConfigRecord(request_record(number, mechanism))
    content = RecordDict({"arrays": model(), "quietbit": record})
    if basis is not None:
        content[ENCLOSED] = ArrayRecord({"subspace": Array(np.ascontiguousarray(basis))})
    return Message(content, dst_node_id=11, message_type="train")


class Node:
    """A node with a policy whose owner lets K numbers out."""

    def __init__(self, folder, config=CONFIG, rules=None, **fields):
        changes = {"epsilon": 1e9, "mechanisms": ["gaussian"], "models": str(folder / "models")}
        path = write_policy(folder, **changes | (rules or {}))
        self.folder = folder
        self.context = context(11, config=config, quietbit_policy=path)
        self.mod = gated(**fields)

    def answers(self, message, update):
        """The node's reply, of an app with this update."""
        return self.mod(message, self.context, app(update))

    @property
    def noted(self):
        """Releases in the ledger."""
        return books(self.folder).releases


def estimate(reply):
    """What the server makes of a release, which has hardly any noise."""
    release = Framed.from_bytes(join_pieces(reply.content.config_records))
    return Uplink(MECHANISM).receive([release.payload])


def long_update():
    return 1e3 * np.random.default_rng(3).normal(size=DIMENSION)


@pytest.mark.parametrize("kind", BAD)
def test_bad_directions_are_declined_before_anything_is_noted(kind, tmp_path):
    node = Node(tmp_path)
    reply = node.answers(request(1, BAD[kind]), long_update())
    assert reply.error.reason.startswith(DECLINED)
    assert node.noted == 0
    if kind != "of another model":  # which shows only beside the model
        assert not (tmp_path / "models").exists()
    assert not node.answers(request(2, GOOD), long_update()).has_error()
    assert not node.answers(request(3), long_update()).has_error()  # it kept them
    (file,) = (tmp_path / "models").iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    assert node.answers(request(4), long_update()).has_error()
    assert node.noted == 2


def gaussian(dimension):
    return Gaussian(Ball(Norm.L2, dimension), 0.001)


WIDE = {"quietbit.subspace": DIMENSION + 1}
SQUARE = np.eye(DIMENSION + 1, dtype=np.float32)


@pytest.mark.parametrize(
    ("config", "rules", "basis", "mechanism"),
    [
        pytest.param({}, {}, GOOD, gaussian(DIMENSION), id="all numbers"),
        pytest.param(WIDE, {}, SQUARE, gaussian(DIMENSION + 1), id="more directions than numbers"),
        # They were on the owner's disk, in place of those of allowed runs, before it was refused.
        pytest.param({}, {"runs": ["5"]}, GOOD, MECHANISM, id="run"),
        pytest.param({}, {"largest_dimension": K - 1}, GOOD, MECHANISM, id="dimension"),
    ],
)
def test_a_request_that_is_not_allowed_stores_no_directions(
    config, rules, basis, mechanism, tmp_path
):
    node = Node(tmp_path, CONFIG | config, rules)
    reply = node.answers(request(1, basis, mechanism), long_update())
    assert reply.has_error()
    assert ("not-allowed" in reply.error.reason) is bool(rules)
    assert not rules or not (tmp_path / "models").exists()
    assert node.noted == 0


def test_an_enclosed_record_of_another_kind_is_declined(tmp_path):
    node = Node(tmp_path)
    message = request(1)
    message.content[ENCLOSED] = ConfigRecord({"subspace": b"x"})
    assert node.answers(message, long_update()).has_error()
    assert node.noted == 0


def test_directions_that_differ_and_change_cost_no_epsilon(tmp_path):
    """Each release has K numbers of length CLIP at most, and is noted with one mechanism."""
    node = Node(tmp_path)
    update = long_update()
    for number in range(1, 6):
        space = space_of_seed(number, K, DIMENSION)
        reply = node.answers(request(number, space.directions), update)
        assert np.linalg.norm(estimate(reply)) <= CLIP + 0.02
        assert node.noted == number
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert len(books(tmp_path).mechanisms) == 1


def test_a_map_that_lengthens_is_clipped_all_the_same(tmp_path, monkeypatch):
    """Were a basis of any length accepted, the mechanism would clip what it makes of an update."""
    monkeypatch.setattr("quietbit.gradients.subspace.NEARLY", np.inf)
    node = Node(tmp_path)
    reply = node.answers(request(1, GOOD * np.float32(1e6)), long_update())
    assert np.linalg.norm(estimate(reply)) <= CLIP + 0.02
    assert node.noted == 1


def test_what_is_enclosed_without_a_subspace_is_not_kept_and_not_shown(tmp_path):
    config = {key: value for key, value in CONFIG.items() if key != "quietbit.subspace"}
    node = Node(tmp_path, config)
    seen = []

    def train(message, _):
        seen.append(set(message.content))
        return app(np.zeros(DIMENSION))(message, _)

    reply = node.mod(request(1, GOOD, gaussian(DIMENSION)), node.context, train)
    assert not reply.has_error()
    assert ENCLOSED not in seen[0]
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.7e308])
def test_an_update_that_is_not_finite_is_released_as_zero(value, tmp_path):
    node = Node(tmp_path)
    update = np.zeros(DIMENSION)
    update[5] = value
    reply = node.answers(request(1, GOOD), update)
    assert np.linalg.norm(estimate(reply)) <= CLIP + 0.02
    assert node.noted == 1
