import pytest

from cli.kit import shell
from lab.report.makers import runs, write_results

SMALL = "figure bias-variance --levels 2 --levels 8 --bits 2 --design-epsilon 3"
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def folder(tmp_path):
    return write_results(tmp_path / "runs", runs())


def test_draws_the_figure(capsys, tmp_path):
    out = tmp_path / "f.png"
    result = shell(capsys, SMALL, "--out", out)
    assert (result.code, result.err) == (0, "")
    assert out.read_bytes().startswith(STARTS["png"])
    facts = shell(capsys, SMALL, "--json", "--out", out).json
    assert len(facts["identities"]) == 2
    assert facts["saved"] == str(out)


@pytest.mark.parametrize(
    ("name", "form"), [("frontier", "png"), ("bytes", "svg"), ("training", "pdf"), ("mine", "svg")]
)
def test_draws_runs_in_every_format(capsys, tmp_path, folder, name, form):
    out = tmp_path / f"f.{form}"
    facts = shell(capsys, f"figure {name} --runs {folder} --json --out", out).json
    assert out.read_bytes().startswith(STARTS[form])
    assert facts["saved"] == str(out)
    assert len(facts["I-MVU, 1 bit"]) >= 1
    assert facts["without noise"][0][0] is None  # infinite


def test_a_target_leaves_out_what_costs_more(capsys, tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = shell(capsys, "figure bytes --epsilon 10 --runs", folder)
    assert (result.code, (tmp_path / "bytes.png").exists()) == (0, True)
    assert "at 10" in result.out
    assert "at 20" not in result.out
