import json
import signal

import pytest
import torch

from cli.kit import assert_refused, shell
from quietbit_lab.task.linear import LinearSoftmax

ZERO = "train --task digits --adjacency zero-out"
BRIEF = "--rounds 4 --cohort 50"
SHORT = f"{ZERO} --design-epsilon 1 --lr 0.3 {BRIEF}"


def said(result):
    """What was printed, on one line."""
    return " ".join(result.out.split())


def test_a_run_and_its_record(capsys, tmp_path):
    out = tmp_path / "run.json"
    result = shell(capsys, SHORT, "--seed", 3, "--out", out)
    assert (result.code, result.err) == (0, "")
    for word in ("test accuracy", "epsilon <=", "zero-out adjacency", "NOT private", str(out)):
        assert word in said(result)
    record = json.loads(out.read_text())
    assert record["settings"]["rng"] == "seeded"
    assert record["expectation"] in said(result)
    assert record["expectation"].startswith("hopeless: the noise in the mean of 50 updates is ")
    again = shell(capsys, f"train --repeat {out} --threads 2 --json").json
    assert [p["accuracy"] for p in again["points"]] == [p["accuracy"] for p in record["points"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--mechanism auto --epsilon 4 --clip 1", "auto took vmvu: of the mechanisms within 5 %"),
        ("--design-epsilon 4 --decoder alphabet", "gain of the decoder 2.075: a step is this"),
    ],
)
def test_auto_says_what_it_took_and_the_paper_s_decoder_its_gain(capsys, words, says):
    assert says in said(shell(capsys, f"{ZERO} --lr 0.3 --rounds 2 --cohort 20 {words}"))


def test_words_are_the_operating_systems_unless_a_seed_is_given(capsys):
    record = shell(capsys, SHORT, "--json").json
    assert (record["settings"]["rng"], record["seeds"]["rng"]) == ("secure", None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, SHORT, "--device", "cuda"), "no GPU")


def test_a_target_is_kept(capsys):
    words = "train --epsilon 5 --lr 0.3 --rounds 10 --cohort 100 --adjacency replace-one --json"
    guarantee = shell(capsys, words).json["guarantee"]
    assert 4.99 < guarantee["epsilon_upper"] <= 5
    assert "replace-one" in guarantee["sentence"]


def test_a_run_without_privacy_needs_no_adjacency(capsys):
    assert shell(capsys, "train --mechanism none --rounds 2 --json").json["guarantee"] is None


def test_a_diverging_run_keeps_its_record(capsys, tmp_path):
    out = tmp_path / "run.json"
    result = shell(capsys, f"{ZERO} --design-epsilon 1 --lr 1e30 {BRIEF} --out {out}")
    assert result.code == 2
    assert "diverged in round 1" in result.err
    assert result.err.count("\n") == 1
    assert json.loads(out.read_text())["status"] == "diverged"


def test_ctrl_c_keeps_what_was_finished(capsys, tmp_path, monkeypatch):
    out, real, calls = tmp_path / "run.json", LinearSoftmax.evaluate, []

    def evaluate(self, parameters):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(self, parameters)

    monkeypatch.setattr(LinearSoftmax, "evaluate", evaluate)
    result = shell(capsys, SHORT, "--out", out)
    assert result.code == 130
    assert result.err.count("\n") == 1
    assert "Interrupted" in result.err
    record = json.loads(out.read_text())
    assert record["status"] == "interrupted"
    assert [point["round"] for point in record["points"]] == [1, 2]
