"""``quietbit compare``: a table, JSON, and refusals."""

import pytest

from cli.kit import shell

QUESTION = (
    "compare --dimension 650 --epsilon 8 --delta 1e-5 --adjacency zero-out"
    " --clients 300 --cohort 100"
)


def test_the_table_names_every_trust_and_its_best_way(capsys):
    result = shell(capsys, f"{QUESTION} --rounds 15")
    assert result.code == 0
    for words in (
        "local trust",
        "secure-aggregation trust",
        "central trust",
        "Best under local trust: vmvu",
    ):
        assert words in result.out
    assert "5 releases" in result.out
    assert "noise: in the mean of a round" in " ".join(result.out.split())


def test_json_has_all_numbers(capsys):
    found = shell(capsys, f"{QUESTION} --releases 5 --trust central --json").json
    row = found["rows"][found["best"]["central"]]
    assert (row["mechanism"], row["trust"], row["payload_bytes"]) == ("gaussian", "central", 2600)
    assert row["epsilon_upper"] <= 8
    assert row["run_noise"] == pytest.approx(row["noise"] / found["rounds"] ** 0.5)
    assert row["sentence"].startswith(row["verdict"])
