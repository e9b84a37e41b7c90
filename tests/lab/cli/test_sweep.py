import json

import pytest

from cli.kit import assert_refused, shell

TEXT = """
name = "little"
claim = "a claim"
[task]
name = "digits"
[common]
cohort = 50
adjacency = "zero-out"
clip = 0.5
rounds = [2, 4]
seeds = [1, 2]
[[grid]]
label = "I-MVU"
mechanism = "imvu"
design_epsilon = 1.0
lr = [0.1, 0.3]
[[grid]]
label = "exact"
mechanism = "none"
lr = 0.3
[reduced]
seeds = [1]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "little.toml"
    path.write_text(TEXT)
    return path


def test_sweep_resume_and_figure(capsys, tmp_path, file):
    runs = tmp_path / "runs"
    result = shell(capsys, "sweep", file, "--out", runs, "--json")
    assert result.json["jobs"] == result.json["ran"] == 6
    assert shell(capsys, "sweep", file, "--out", runs, "--resume", "--json").json["ran"] == 0
    assert_refused(shell(capsys, "sweep", file, "--out", runs, "--json"), "--resume")
    for end, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        picture = tmp_path / f"f.{end}"
        drawn = shell(capsys, "figure", "little", "--runs", runs, "--out", picture, "--json")
        assert drawn.code == 0
        assert picture.read_bytes().startswith(start)
    assert drawn.json["I-MVU"][0][-1] == 2
    assert_refused(
        shell(capsys, "figure", "other", "--runs", runs, "--out", tmp_path / "o.png"), "other"
    )


def test_the_reduced_grid(capsys, tmp_path, file):
    assert (
        shell(capsys, "sweep", file, "--out", tmp_path / "r", "--reduced", "--json").json["jobs"]
        == 3
    )


def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, "sweep", "none.toml"), "none.toml")
    file.write_text(TEXT.replace("digits", "imagenet"))
    assert_refused(shell(capsys, "sweep", file), "imagenet")
    assert_refused(shell(capsys, "figure", "little", "--runs", "nowhere"), "nowhere")
    (tmp_path / "empty").mkdir()
    assert_refused(shell(capsys, "figure", "little", "--runs", "empty"), "empty")


def test_a_device_and_pieces(capsys, tmp_path, file):
    """On a device the same results arrive in pieces; what needs a GPU or a device says so."""
    runs = tmp_path / "runs"
    first = shell(
        capsys, "sweep", file, "--out", runs, "--device", "cpu", "--minutes", 1e-9, "--json"
    )
    assert (first.json["ran"], first.json["left"]) == (0, 6)
    again = shell(
        capsys,
        "sweep",
        file,
        "--out",
        runs,
        "--device",
        "cpu",
        "--resume",
        "--drop-behind",
        90,
        "--json",
    )
    assert (again.json["ran"], again.json["left"]) == (6, 0)
    lines = [
        json.loads(line)["record"] for line in (runs / "results.jsonl").read_text().splitlines()
    ]
    assert {line["draws"] for line in lines} == {"every client", "law of the sum"}
    assert_refused(
        shell(capsys, "sweep", file, "--out", tmp_path / "x", "--drop-behind", 5), "device"
    )
    assert_refused(
        shell(capsys, "sweep", file, "--out", tmp_path / "x", "--device", "meta"), "device"
    )
    assert_refused(
        shell(capsys, "sweep", file, "--out", tmp_path / "x", "--device", "cpu", "--workers", 2),
        "workers",
    )
    words = ("--device", "cpu", "--drop-behind", "nan")
    assert_refused(shell(capsys, "sweep", file, "--out", tmp_path / "x", *words), "behind")
    assert not (tmp_path / "x").exists()
