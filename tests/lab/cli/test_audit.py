import math

import pytest

import quietbit
from cli.kit import ONE_BIT, shell
from quietbit_lab.auditor.audit import Audit

SMALL = f"audit {ONE_BIT} --norm l1 --dimension 2 --samples 400 --delta 0"


def test_the_shipped_sampler_passes(capsys):
    result = shell(capsys, SMALL, "--adjacency", "replace-one", "--seed", 1)
    assert (result.code, result.err) == (0, "")
    assert "consistent with the claim" in result.out


@pytest.mark.parametrize(
    "words",
    [
        f"{SMALL} --adjacency zero-out",
        "audit gaussian --epsilon 2 --adjacency zero-out --dimension 4 --samples 300 --seed 1",
        pytest.param(
            "audit vmvu --epsilon 2 --adjacency zero-out --dimension 16 --samples 300 --seed 1",
            marks=pytest.mark.long,
        ),
    ],
    ids=["design", "gaussian", "vmvu"],
)
def test_what_is_audited_has_its_facts(capsys, words):
    facts = shell(capsys, words, "--json").json
    assert facts["passed"] is True
    assert 0 <= facts["epsilon_lower"] <= facts["epsilon_upper"] <= 2
    assert (facts["verdict"], facts["means"], facts["clipping"]) == ("passed", True, True)
    assert 0 < facts["detectable"] < facts["epsilon_upper"]


def test_a_claim_that_cannot_be_measured_is_no_failure(capsys):
    words = f"audit {ONE_BIT} --samples 100 --dimension 2 --beta 4 --adjacency replace-one --seed 1"
    result = shell(capsys, words)
    assert result.code == 0
    assert "inconclusive" in result.out


def test_a_caught_sampler_exits_1(capsys, monkeypatch):
    found = Audit(2.0, 1.0, 0.0, quietbit.Adjacency.ZERO_OUT, 0.99, 400, math.inf, 5.0)
    monkeypatch.setattr("quietbit_lab.auditor.audit.audit", lambda *_, **__: found)
    result = shell(capsys, SMALL, "--adjacency", "zero-out")
    assert result.code == 1
    assert "NOT WHAT IS CLAIMED" in result.out
