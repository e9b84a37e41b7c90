"""The report of a run: a table, JSON that a parser reads, and the sentence of its guarantee."""

from __future__ import annotations

import json

import pytest

from federation.contract.room import RUN, Room
from plans import engine_plan
from quietbit.federation.messages import Reply
from quietbit.privacy.guarantee import shown_epsilon

pytestmark = pytest.mark.filterwarnings("ignore::quietbit.node.policy.SeededRngWarning")
PLAN = engine_plan("imvu", clip=1.0, epsilon=20.0, adjacency="replace-one", releases=4)


def room_after(rounds: int) -> Room:
    room = Room(PLAN)
    for number in range(1, rounds + 1):
        current = room.open(number)
        room.play(current)
        room.run.over(current)
    return room


def test_json_and_table() -> None:
    report = room_after(2).run.report()
    values = json.loads(json.dumps(report.to_json()))
    assert values == report.to_json()
    assert (values["format"], values["version"]) == ("quietbit federated run", 1)
    assert values["run"] == str(RUN)
    assert len(values["nodes"]) == 5
    assert values["guarantee"]["adjacency"] == "replace-one"
    assert values["settings"]["quietbit.mechanism"] == "imvu"
    text = str(report)
    worst = shown_epsilon(values["nodes"][0]["epsilon_upper"])
    assert f"Releases per node, in this run: fewest 2 (epsilon {worst}), median 2" in text
    assert text.count("asked  answered  declined  failed  refused") == 1
    *table, _, promise = text.splitlines()
    assert max(map(len, table)) <= 100
    assert promise.startswith("The worst client, per node number in this run: epsilon <= ")


def test_a_run_that_has_not_begun() -> None:
    report = Room(PLAN).run.report()
    assert report.guarantee is None
    assert report.to_json()["guarantee"] is None
    assert "0 parameters" in str(report)


def test_a_run_in_which_no_release_arrived_says_so_before_the_epsilon() -> None:
    room = Room(PLAN)
    current = room.open()
    room.play(current, lambda trip, node: True)
    room.run.over(current)
    begins = "No release arrived. This counts every request as a release that "
    assert room.run.report().promise().startswith(begins)


def test_numbers_that_owners_let_out_stand_in_the_sentence_few_and_printable() -> None:
    room = room_after(1)
    room.run.take_beside(Reply(11, 1, metrics={"loss": 2.0}))
    sentence = room.run.report().promise().partition("epsilon <= ")[0]
    who = "The worst client, per node number in this run"
    assert sentence == f"{who}, but for numbers that left unprotected (loss): "
    names = {f"{place}\x1b[2J\u202e{'x' * 500}": 1.0 for place in range(300)}
    room.run.take_beside(Reply(11, 1, metrics=names))
    report = room.run.report()
    assert len(report.numbers) == 100
    assert len(report.promise()) < 700
    assert str(report).replace("\n", "").isprintable()
