"""The mod: one release per answer and nothing beside it; a ledger that is written first; reasons to decline."""

import logging
import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quietbit.flower import NodeLedger, PlaintextWarning, PrivateUplink, RunSettings, SeededWordsWarning, read_ledger
from quietbit.flower.job import _warn_without_file
from quietbit.flower.release import Release
from quietbit.flower.request import Request
from quietbit.simulate.client_rng import seeded_client_rng
from quietbit.wire.uplink import Uplink
from unit.flower.kit import CONFIG, DIMENSION, RUN, app, be_the_server, context, model, trained

SETTINGS = RunSettings.from_run_config(CONFIG)
MECHANISM = SETTINGS.mechanism_for(DIMENSION)
SHIFT = np.linspace(-0.2, 0.3, DIMENSION)
pytestmark = pytest.mark.filterwarnings("ignore::quietbit.flower.SeededWordsWarning")


def question(number=1, node=11, kind="train", mechanism=MECHANISM, run=RUN, arrays=None):
    be_the_server(run)
    content = RecordDict({"arrays": arrays or model(), "config": ConfigRecord({"lr": 0.1})})
    content["quietbit"] = ConfigRecord(dict(Request.of(number, mechanism).to_record()))
    message = Message(content, node, kind)
    message.metadata.__dict__["_message_id"] = f"question-{number}"
    return message


def ledger(place):
    text = place.state["quietbit"]["ledger"]
    return NodeLedger.from_text(text, "the state")


def reason(reply, begins="quietbit: "):
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.reason.startswith(begins)
    assert "\n" not in reply.error.reason
    return reply.error.reason


def never(*_):
    raise AssertionError("the app must not be called")


def test_an_answer_is_one_release_and_nothing_else():
    place = context(11, partition=2)
    reply = PrivateUplink()(question(3), place, app(SHIFT))
    assert list(reply.content) == ["quietbit"]
    assert list(reply.content["quietbit"]) == ["release"]
    release = Release.from_bytes(reply.content["quietbit"]["release"])
    assert (release.run, release.round, release.node) == (RUN, 3, 11)
    assert reply.metadata.reply_to_message_id == "question-3"
    expected = Uplink(MECHANISM).send([SHIFT], seeded_client_rng(7)(2, 2))
    assert bytes(release.payload) == expected
    assert b"Ada" not in reply.content["quietbit"]["release"]


def test_the_codes_follow_the_sign_of_received_minus_trained():
    config = CONFIG | {"quietbit.design-epsilon": 10.0, "quietbit.beta": 3.0, "quietbit.epsilon": 1e6}
    del config["quietbit.releases"]
    mechanism = RunSettings.from_run_config(config).mechanism_for(DIMENSION)
    shift = np.where(np.arange(DIMENSION) % 3 == 0, 0.15, -0.15)
    reply = PrivateUplink()(question(mechanism=mechanism), context(11, config=config), app(shift))
    payload = Release.from_bytes(reply.content["quietbit"]["release"]).payload
    agree = np.sign(Uplink(mechanism).receive([payload])) == np.sign(shift)
    assert agree.mean() > 0.9  # 0.99 on average


def test_the_order_of_the_apps_arrays_does_not_matter():
    def shuffled(message, _):
        reply = trained(message, SHIFT)
        record = reply.content["arrays"]
        reply.content["arrays"] = ArrayRecord({name: record[name] for name in sorted(record)})
        message.content["arrays"].clear()  # an app may eat what it was given
        return reply

    replies = [PrivateUplink()(question(), context(11), call) for call in (app(SHIFT), shuffled)]
    assert replies[0].content["quietbit"] == replies[1].content["quietbit"]


def test_the_ledger_is_written_before_a_word_is_drawn(monkeypatch):
    place, seen = context(11), []
    plain = Uplink.send

    def send(self, *args):
        seen.append(ledger(place).releases)
        return plain(self, *args)

    monkeypatch.setattr(Uplink, "send", send)
    for number in (1, 2):
        assert PrivateUplink()(question(number), place, app(SHIFT)).has_content()
    assert seen == [1, 2]
    guarantee = ledger(place).guarantee(SETTINGS.delta, SETTINGS.privacy_adjacency)
    curve = MECHANISM.privacy(SETTINGS.privacy_adjacency)
    assert guarantee.epsilon_upper == curve.repeat(2).epsilon_upper(SETTINGS.delta)


def test_a_release_that_fails_later_is_counted():
    place = context(11)
    reply = PrivateUplink()(question(), place, app(np.full(DIMENSION, np.nan)))
    assert "NaN" not in reason(reply)
    assert "finite" not in reason(reply)
    assert ledger(place).releases == 1


def test_the_budget_ends_it_whatever_the_server_asks():
    place, mod = context(11), PrivateUplink()
    for number in (1, 2, 3, 4):
        assert mod(question(number), place, app(SHIFT)).has_content()
    for number in (5, 6, 100):
        assert "The budget of the run" in reason(mod(question(number), place, never))
    assert ledger(place).releases == 4


def test_a_cap_of_the_node_is_not_raised_by_the_run(tmp_path):
    cap = {"quietbit_epsilon": 8.0, "quietbit_delta": 1e-5, "quietbit_adjacency": "replace-one"}
    path = tmp_path / "ledger.json"
    own = cap | {"quietbit_ledger": str(path), "quietbit_words": "seeded"}
    mod, answers = PrivateUplink(), 0
    for run in range(10, 20):  # every run is a new one, with a new context and a budget of a million
        config = CONFIG | {"quietbit.epsilon": 1e6, "quietbit.design-epsilon": 0.5 + run / 100}
        del config["quietbit.releases"]
        mechanism = RunSettings.from_run_config(config).mechanism_for(DIMENSION)
        place = context(11, config=config, run=run, **own)
        reply = mod(question(1, mechanism=mechanism, run=run), place, app(SHIFT))
        answers += reply.has_content()
    assert 0 < answers < 10
    assert "The budget of this node" in reason(reply)
    found = read_ledger(path)
    assert found.releases == answers == len(found.spent)
    assert found.guarantee(1e-5, SETTINGS.privacy_adjacency).epsilon_upper <= 8.0


def test_restarts_and_new_runs_go_on_with_the_file(tmp_path):
    path = tmp_path / "ledger.json"
    own = {"quietbit_ledger": str(path), "quietbit_words": "seeded"}
    for run in (1, 2, 3, 4):
        reply = PrivateUplink()(question(run=run), context(run, run=run, **own), app(SHIFT))
        assert reply.has_content()
    assert "budget of the run" in reason(PrivateUplink()(question(run=5), context(5, run=5, **own), never))
    path.write_text(path.read_text()[:-30])
    assert "ledger" in reason(PrivateUplink()(question(run=6), context(6, run=6, **own), never))
    # Without a file the context is all there is: a new one starts from nothing.
    assert PrivateUplink()(question(run=5), context(5, run=5), app(SHIFT)).has_content()


def test_a_ledger_that_cannot_be_written_stops_the_release(tmp_path):
    own = {"quietbit_ledger": str(tmp_path / "none" / "ledger.json"), "quietbit_words": "seeded"}
    assert "Cannot lock the ledger" in reason(PrivateUplink()(question(), context(11, **own), never))


def test_a_round_is_answered_once():
    place, mod = context(11), PrivateUplink()
    assert mod(question(2), place, app(SHIFT)).has_content()
    for number in (2, 1):  # not the words of a node that released nothing: it did, and the reply may be lost
        assert "must be above 2" in reason(mod(question(number), place, never), "quietbit, answered before: ")


def test_a_node_without_a_ledger_file_warns_once_in_a_process(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    _warn_without_file.cache_clear()
    own = {"quietbit_ledger": str(tmp_path / "ledger.json"), "quietbit_words": "seeded"}
    PrivateUplink()(question(), context(11, **own), app(SHIFT))
    assert "must have quietbit.ledger" not in caplog.text
    for number in (1, 2):
        PrivateUplink()(question(number), context(11), app(SHIFT))
    found = [record for record in caplog.records if "must have quietbit.ledger" in record.getMessage()]
    assert [record.levelno for record in found] == [logging.WARNING]


def test_a_server_with_other_settings_is_declined_before_training():
    mod, other = PrivateUplink(), {"quietbit.clip": 2.0}
    theirs = RunSettings.from_run_config(CONFIG | other).mechanism_for(DIMENSION)
    assert "clip of the server's mechanism must be 1.0, got 2.0" in reason(
        mod(question(mechanism=theirs), context(11), never)
    )
    design = RunSettings.from_run_config(CONFIG | {"quietbit.releases": 5}).mechanism_for(DIMENSION)
    assert "identity of the server's mechanism" in reason(mod(question(mechanism=design), context(11), never))
    wider = SETTINGS.mechanism_for(DIMENSION + 1)
    assert "dimension of the server's mechanism" in reason(mod(question(mechanism=wider), context(11), never))
    plain = question()
    del plain.content["quietbit"]
    assert "is its strategy a PrivateStrategy?" in reason(mod(plain, context(11), never))
    assert "quietbit.mechanism, which is missing" in reason(mod(question(), context(11, config={}), never))
    two = question()
    two.content["more"] = model(1)
    assert "number of ArrayRecords" in reason(mod(two, context(11), never))


def test_an_app_that_answers_with_something_else_is_declined():
    def other(message, _):
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})}), reply_to=message)

    def nothing(message, _):
        return Message(RecordDict(), reply_to=message)

    place = context(11)
    assert "trained arrays must have the names" in reason(PrivateUplink()(question(), place, other))
    assert "number of ArrayRecords in the app's reply" in reason(PrivateUplink()(question(), place, nothing))
    assert "quietbit" not in place.state


def test_errors_of_the_app_keep_their_text_to_themselves():
    def fails(*_):
        raise ValueError("label 7 of patient Ada")

    def says(message, _):
        return Message(Error(1, "patient Ada"), reply_to=message)

    def forgets(*_):
        return None

    for kind in ("train", "evaluate", "query"):
        for call in (fails, says, forgets):
            assert "Ada" not in reason(PrivateUplink()(question(kind=kind), context(11), call))
    with pytest.warns(PlaintextWarning, match="Texts of the app's errors"):
        mod = PrivateUplink(reveal_errors=True)
    with pytest.raises(ValueError, match="Ada"):
        mod(question(), context(11), fails)
    assert "Ada" in mod(question(), context(11), says).error.reason


@pytest.mark.parametrize("kind", ["evaluate", "evaluate.mine", "query"])
def test_plaintext_of_other_replies_is_dropped(kind):
    reply = PrivateUplink()(question(kind=kind), context(11), app(SHIFT))
    assert dict(reply.content) == {}
    with pytest.warns(PlaintextWarning):
        mod = PrivateUplink(allow=("train_loss",))
    reply = mod(question(kind=kind), context(11), app(SHIFT))
    assert {name: dict(record) for name, record in reply.content.items()} == {"metrics": {"train_loss": 0.25}}


def test_letting_a_metric_through_names_it():
    with pytest.warns(PlaintextWarning, match="no privacy: train_loss, num-examples"):
        mod = PrivateUplink(allow=["train_loss", "num-examples"])
    reply = mod(question(), context(11), app(SHIFT, {"train_loss": 0.5, "secret": 1}))
    assert sorted(reply.content) == ["metrics", "quietbit"]
    assert reply.content["metrics"] == MetricRecord({"train_loss": 0.5})
    with pytest.raises(ValueError, match="a tuple of names"):
        PrivateUplink(allow="train_loss")


def test_seeded_words_warn_and_secure_ones_differ():
    with pytest.warns(SeededWordsWarning):
        PrivateUplink()(question(), context(11), app(SHIFT))
    secure = {key: value for key, value in CONFIG.items() if key not in ("quietbit.words", "quietbit.seed")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replies = [PrivateUplink()(question(), context(11, config=secure), app(SHIFT)) for _ in range(3)]
    assert len({reply.content["quietbit"]["release"] for reply in replies}) == 3


def test_it_works_as_a_mod_of_a_client_app_and_travels():
    client = ClientApp(mods=[pickle.loads(pickle.dumps(PrivateUplink()))])  # noqa: S301

    @client.train()
    def train(message, context):
        return trained(message, SHIFT)

    @client.evaluate()
    def evaluate(message, context):
        return trained(message, SHIFT)

    place = context(11)
    reply = client(question(kind="train"), place)
    assert reply.content == PrivateUplink()(question(), context(11), app(SHIFT)).content
    assert dict(client(question(kind="evaluate"), place).content) == {}


@pytest.mark.parametrize("data", [b"PK\x03\x04 is no archive", b"\x93NUMPY\x01\x00\x02\x00{("])
def test_arrays_that_numpy_chokes_on_are_an_error_reply_and_nothing_is_raised(data):
    """Flower would send an exception's text to the server, and its simulation would forget the state."""
    arrays = dict(model())
    old = arrays["weight"]
    arrays["weight"] = Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=data)
    place = context(11)
    reply = PrivateUplink()(
        question(arrays=ArrayRecord(arrays)),
        place,
        lambda message, _: Message(RecordDict({"arrays": model()}), reply_to=message),
    )
    assert "log says why" in reason(reply)
    assert "quietbit" not in place.state
