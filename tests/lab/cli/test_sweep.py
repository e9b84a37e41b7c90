import pytest

from cli.kit import assert_refused, shell
from quietbit_lab.experiment.lines import read_lines

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
    words = f"sweep {file} --out {runs} --json"
    result = shell(capsys, words)
    assert result.json["jobs"] == result.json["ran"] == 6
    assert shell(capsys, words, "--resume").json["ran"] == 0
    assert_refused(shell(capsys, words), "--resume")
    picture = tmp_path / "f.png"
    drawn = shell(capsys, f"figure little --runs {runs} --json --out", picture).json
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert drawn["I-MVU"][0][-1] == 2


def test_the_reduced_grid(capsys, tmp_path, file):
    assert shell(capsys, f"sweep {file} --reduced --json --out", tmp_path / "r").json["jobs"] == 3


def test_a_device_and_pieces(capsys, tmp_path, file):
    """On a device the same results arrive in pieces."""
    runs = tmp_path / "runs"
    words = f"sweep {file} --device cpu --json --out {runs}"
    first = shell(capsys, words, "--minutes", 1e-9).json
    assert (first["ran"], first["left"]) == (0, 6)
    again = shell(capsys, words, "--resume", "--drop-behind", 90).json
    assert (again["ran"], again["left"]) == (6, 0)
    draws = {line["record"]["draws"] for line in read_lines(runs / "results.jsonl")}
    assert draws == {"every client", "law of the sum"}
