"""A server that asks in order to be refused learns nothing about what a node released to others.

Before, a run's cap counted the whole ledger and its refusal had a sentence of its own: bisecting
the cap told how many releases were made for another server, 7 of 7 and 18 of 18, in 25 requests and
without one release.
"""

import pytest

from federation.node.makers import BALL, MECHANISM, books, gate_of, keeper, policy, request
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.errors import QuietbitError
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node.gate import LocalGate
from quietbit.node.refusal import Reason, refusal_of

OTHERS = 1000  # the number of the other server's run


def gate_after(folder, releases, **changes):
    """A gate that has answered another server so often."""
    folder.mkdir()
    gate = keeper(folder, **{"epsilon": 100.0, "releases": 500, "releases_per_day": 500} | changes)
    for number in range(1, releases + 1):
        gate.accept(request(number, run=OTHERS)).release(None)
    return gate


def heard(gate, request):
    """Everything that a server gets to know of a request: accepted, or the refusal's text."""
    try:
        gate.accept(request).release(None)
    except QuietbitError as error:
        return refusal_of(error).to_text()
    return "accepted"


def bisect_cap(gate, run):
    """Look for the smallest cap of a run that allows one release, as the attacker did; return
    all that was heard.
    """
    low, high = 0.0, 50.0
    transcript = []
    for step in range(25):
        middle = (low + high) / 2
        said = heard(gate, request(step + 1, run=run * 100 + step, epsilon=middle))
        transcript.append((middle, said))
        if said == "accepted":
            high = middle
        else:
            low = middle
    return transcript


def test_the_cap_of_a_run_tells_nothing_about_other_runs(tmp_path):
    transcripts = [
        bisect_cap(gate_after(tmp_path / str(releases), releases), 1) for releases in (0, 7, 18)
    ]
    assert transcripts[0] == transcripts[1] == transcripts[2]
    said = [text for _, text in transcripts[0]]
    assert 0 < said.count("accepted") < 25  # both outcomes are reached: the search is one


def test_a_cap_holds_for_all_releases_of_its_run(tmp_path):
    gate = gate_after(tmp_path / "node", 5)
    limit = 3.0
    answers = [heard(gate, request(number, epsilon=limit)) for number in range(1, 20)]
    assert 0 < answers.count("accepted") < 19
    assert set(answers[answers.count("accepted") :]) == {answers[-1]}


def costly(number):
    """Mechanisms from very dear to cheap, to look for what is left of the node's budget."""
    return Gaussian(BALL, 0.05 * 1.3**number)


def test_what_is_left_of_the_nodes_budget_is_asked_for_in_few_runs_a_day(tmp_path):
    """Only the comparison of a cost with what is left depends on others: it is made so often per
    day, then never.
    """
    most = 4
    gate = gate_after(tmp_path / "node", 3, epsilon=8.0, refusals_per_day=most)
    before = books(tmp_path / "node").releases
    said = [heard(gate, request(1, costly(number), run=number)) for number in range(40)]
    assert set(said) == {said[0]}  # also those that would have been accepted
    assert said[0].startswith(Reason.BUDGET_SPENT.value)
    assert books(tmp_path / "node").releases == before
    assert heard(gate_of(gate.rules), request(1, costly(39), run=99)) == said[0]


def test_a_run_that_was_refused_for_the_nodes_budget_is_refused_for_the_day(tmp_path, monkeypatch):
    gate = gate_after(tmp_path / "node", 3, epsilon=8.0)
    cheap = costly(30)
    assert heard(gate, request(1, costly(0), run=5)).startswith(Reason.BUDGET_SPENT.value)
    assert heard(gate, request(1, cheap, run=5)).startswith(Reason.BUDGET_SPENT.value)
    assert heard(gate, request(1, cheap, run=6)) == "accepted"
    for _ in range(
        50
    ):  # what is not compared with the budget is not counted, and pushes nothing out
        heard(gate, request(1, MECHANISM, run=5, dimension=41))
    assert heard(gate, request(1, cheap, run=5)).startswith(Reason.BUDGET_SPENT.value)


@pytest.mark.parametrize("changes", [{"epsilon": 2.0}, {"releases": 3}, {"releases_per_day": 3}])
def test_every_spent_budget_sounds_the_same(tmp_path, changes):
    gate = gate_after(tmp_path / "node", 3)
    gate = LocalGate(policy(tmp_path / "node", **changes), gate.ledger, {})
    node = heard(gate, request(4, run=OTHERS))
    run = heard(gate_after(tmp_path / "other", 0), request(1, epsilon=1e-3))
    assert node == run
    assert not any(letter.isdigit() for letter in node)


def test_one_run_cannot_fill_the_ledger_with_mechanisms(tmp_path):
    gate = gate_after(tmp_path / "node", 0, epsilon=1e6)
    said = [
        heard(
            gate,
            request(number, InterpolatedMVU(solve(DesignSpec(2, 1, 0.3 + number / 100)), BALL)),
        )
        for number in range(1, 31)
    ]
    assert said.count("accepted") == 16
    assert heard(gate, request(1, run=8)) == "accepted"  # others are answered
