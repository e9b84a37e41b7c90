"""``quietbit compare``: a table, JSON, a picture, and refusals."""

import numpy as np
import pytest

from unit.cli.kit import assert_refused, shell

QUESTION = (
    "compare",
    "--dimension",
    "650",
    "--epsilon",
    "8",
    "--delta",
    "1e-5",
    "--adjacency",
    "zero-out",
    "--clients",
    "300",
    "--cohort",
    "100",
)


def test_the_table_names_every_trust_and_its_best_way(capsys):
    result = shell(capsys, *QUESTION, "--rounds", "15", "--baselines")
    assert result.code == 0
    for words in (
        "local trust",
        "secure-aggregation trust",
        "central trust",
        "Best under local trust: vmvu",
    ):
        assert words in result.out
    assert "laplace, local: norm of the ball must be l1" in result.out
    assert "5 releases" in result.out
    assert "The clip:" in result.out


def test_json_has_all_numbers(capsys):
    found = shell(capsys, *QUESTION, "--releases", "5", "--trust", "central", "--json").json
    row = found["rows"][found["best"]["central"]]
    assert (row["mechanism"], row["trust"], row["payload_bytes"]) == ("gaussian", "central", 2600)
    assert row["epsilon_upper"] <= 8
    assert row["run_noise"] == pytest.approx(row["noise"] / found["rounds"] ** 0.5)
    assert row["relative_error"] == pytest.approx(1 / 100)
    assert [point["clip_over_length"] for point in row["clip_sensitivity"]] == [
        0.25,
        0.5,
        1.0,
        2.0,
        4.0,
    ]
    assert row["sentence"].startswith(row["verdict"])


def test_it_says_which_interval_a_budget_for_evaluations_buys(capsys):
    plain = shell(capsys, *QUESTION, "--releases", "5", "--trust", "central", "--json").json
    asked = (*QUESTION, "--releases", "5", "--trust", "central", "--evaluate", "0.5")
    found = shell(capsys, *asked, "--json").json
    assert found["evaluation"] == {
        "epsilon": 0.5,
        "spends": 2.5,
        "margin": pytest.approx(0.25, abs=0.01),
    }
    assert found["rows"][0]["noise"] > plain["rows"][0]["noise"]  # what is left for updates
    assert "100 answers give an accuracy within" in " ".join(shell(capsys, *asked).out.split())
    assert plain["evaluation"] is None
    assert_refused(
        shell(capsys, *QUESTION, "--releases", "5", "--evaluate", "2"), "epsilon must be above 10.0"
    )


def test_the_picture_is_written(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="needs quietbit-lab")
    picture = tmp_path / "compare.svg"
    result = shell(
        capsys, *QUESTION, "--releases", "5", "--trust", "central", "--json", "--out", picture
    )
    assert result.json["plot"] == str(picture)
    assert "</svg>" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--rounds or --releases"),
        (("--rounds", "3", "--releases", "2"), "--rounds or --releases"),
        (("--rounds", "3", "--trust", "nobody"), "trust"),
        (("--rounds", "3", "--out", "picture.txt"), ".svg"),
    ],
)
def test_what_has_no_meaning_is_refused(capsys, words, said):
    assert_refused(shell(capsys, *QUESTION, *words), said)


def test_public_gradients_say_what_a_subspace_buys(capsys, tmp_path):
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(3, 650)) / 25
    rows = (rng.normal(size=(40, 3)) + 1) @ factors + 0.002 * rng.normal(size=(40, 650))
    path = str(tmp_path / "gradients.npy")
    np.save(path, rows)
    words = (*QUESTION, "--releases", "1", "--trust", "local", "--public", path)
    result = shell(capsys, *words)
    assert result.code == 0
    assert "Set quietbit.subspace = " in result.out
    table = shell(capsys, *words, "--json").json["subspace"]["local"]
    assert [row["directions"] for row in table] == [1, 2, 4, 8, 16, 650]
    assert table[0]["noise"] < table[-1]["noise"]
    np.save(path, rows[:, :-1])
    assert_refused(shell(capsys, *words), "public")
