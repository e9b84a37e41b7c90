import math

import pytest

import quietbit
from cli.kit import ONE_BIT, assert_refused, shell
from quietbit_lab.auditor.audit import Audit

WORDS = ("audit", ONE_BIT, "--norm", "l1", "--dimension", 2, "--samples", 400, "--delta", 0)


def test_the_shipped_sampler_passes(capsys):
    result = shell(capsys, *WORDS, "--adjacency", "replace-one", "--seed", 1)
    assert (result.code, result.err) == (0, "")
    assert "consistent with the claim" in result.out
    facts = shell(capsys, *WORDS, "--adjacency", "zero-out", "--json").json
    assert facts["passed"] is True
    assert 0 <= facts["epsilon_lower"] <= facts["epsilon_upper"]
    assert (facts["verdict"], facts["means"], facts["clipping"]) == ("passed", True, True)
    assert 0 < facts["detectable"] < facts["epsilon_upper"]


def test_a_claim_that_cannot_be_measured_is_no_failure(capsys):
    words = (*WORDS[:1], ONE_BIT, "--samples", 100, "--dimension", 2, "--beta", 4)
    result = shell(capsys, *words, "--adjacency", "replace-one", "--seed", 1)
    assert result.code == 0
    assert "inconclusive" in result.out


def test_a_caught_sampler_exits_1(capsys, monkeypatch):
    found = Audit(2.0, 1.0, 0.0, quietbit.Adjacency.ZERO_OUT, 0.99, 400, math.inf, 5.0)
    monkeypatch.setattr("quietbit_lab.auditor.audit.audit", lambda *_, **__: found)
    result = shell(capsys, *WORDS, "--adjacency", "zero-out")
    assert result.code == 1
    assert "NOT WHAT IS CLAIMED" in result.out


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("--samples", "3"), "samples"),
        (("--confidence", "1"), "confidence"),
        (("--norm", "l0"), "l0"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, mention):
    assert_refused(shell(capsys, *WORDS, "--adjacency", "zero-out", *words), mention)


@pytest.mark.parametrize("mechanism", [pytest.param("vmvu", marks=pytest.mark.long), "gaussian"])
def test_a_mechanism_is_audited_by_its_word(capsys, mechanism):
    words = (
        "--epsilon",
        2,
        "--adjacency",
        "zero-out",
        "--dimension",
        16,
        "--samples",
        300,
        "--seed",
        1,
        "--json",
    )
    result = shell(capsys, "audit", mechanism, *words)
    assert result.code == 0
    assert result.json["passed"]
    assert result.json["epsilon_upper"] <= 2


def test_a_word_that_is_neither_is_refused(capsys):
    assert_refused(
        shell(capsys, "audit", "vmvu", "--adjacency", "zero-out"), "--epsilon must be given"
    )
