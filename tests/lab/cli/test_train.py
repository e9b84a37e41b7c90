import json
import signal

import pytest
import torch

from cli.kit import assert_refused, shell
from quietbit_lab.task.linear import LinearSoftmax

ZERO = ("train", "--task", "digits", "--adjacency", "zero-out")
SHORT = (*ZERO, "--design-epsilon", 1, "--lr", 0.3, "--rounds", 4, "--cohort", 50)


def test_a_run_and_its_record(capsys, tmp_path):
    out = tmp_path / "run.json"
    result = shell(capsys, *SHORT, "--seed", 3, "--out", out)
    assert (result.code, result.err) == (0, "")
    for word in ("test accuracy", "epsilon <=", "zero-out adjacency", "NOT private", str(out)):
        assert word in " ".join(result.out.split())
    record = json.loads(out.read_text())
    assert record["settings"]["rng"] == "seeded"
    assert record["expectation"] in " ".join(result.out.split())
    assert record["expectation"].startswith("hopeless: the noise in the mean of 50 updates is ")
    again = shell(capsys, "train", "--repeat", out, "--threads", 2, "--json").json
    assert [p["accuracy"] for p in again["points"]] == [p["accuracy"] for p in record["points"]]


def test_auto_says_what_it_took_and_the_paper_s_decoder_its_gain(capsys):
    words = ("--lr", 0.3, "--rounds", 2, "--cohort", 20)
    auto = shell(capsys, *ZERO, "--mechanism", "auto", "--epsilon", 4, *words, "--clip", 1)
    assert "auto took vmvu: of the mechanisms within 5 % of the least error" in " ".join(
        auto.out.split()
    )
    plain = shell(capsys, *ZERO, "--design-epsilon", 4, "--decoder", "alphabet", *words)
    assert "gain of the decoder 2.075: a step is this times as long as its size says" in " ".join(
        plain.out.split()
    )
    assert "gain of the decoder" not in shell(capsys, *SHORT).out


def test_words_are_the_operating_systems_unless_a_seed_is_given(capsys):
    record = shell(capsys, *SHORT, "--json").json
    assert record["settings"]["rng"] == "secure"
    assert record["seeds"]["rng"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, *SHORT, "--device", "cuda"), "no GPU")


def test_a_target_is_kept(capsys):
    words = (
        "train",
        "--epsilon",
        5,
        "--lr",
        0.3,
        "--rounds",
        30,
        "--cohort",
        100,
        "--adjacency",
        "replace-one",
    )
    record = shell(capsys, *words, "--json").json
    assert 4.99 < record["guarantee"]["epsilon_upper"] <= 5
    assert "replace-one" in record["guarantee"]["sentence"]


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("--task", "imagenet"), "imagenet"),
        (("--mechanism", "rappor"), "rappor"),
        (("--mechanism", "gaussian"), "--epsilon"),
        (("--epsilon", 3, "--cohort", 5000), "cohort"),
        (("--clip", "nan"), "clip"),
        (("--adjacency", "bounded"), "adjacency"),
        (("--epsilon", 3, "--out", "no/run.json"), "Cannot write"),
        (("--repeat", "none.json"), "none.json"),
        (("--epsilon", 3, "--task", "mnist", "--data", "nowhere"), "quietbit data get mnist"),
        (("--mechanism", "laplace", "--noise-multiplier", 1), "norm"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, words, mention):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, *ZERO, *words), mention)
    assert list(tmp_path.iterdir()) == []


def test_adjacency_is_never_left_implicit(capsys):
    assert_refused(shell(capsys, "train", "--epsilon", 3), "--adjacency must be given")
    public = shell(capsys, "train", "--mechanism", "none", "--rounds", 2, "--json").json
    assert public["guarantee"] is None


def test_a_diverging_run_keeps_its_record(capsys, tmp_path):
    out = tmp_path / "run.json"
    result = shell(capsys, *SHORT[:7], "--lr", 1e30, "--rounds", 4, "--cohort", 50, "--out", out)
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
    result = shell(capsys, *SHORT, "--out", out)
    assert result.code == 130
    assert result.err.count("\n") == 1
    assert "Interrupted" in result.err
    record = json.loads(out.read_text())
    assert record["status"] == "interrupted"
    assert [point["round"] for point in record["points"]] == [1, 2]
