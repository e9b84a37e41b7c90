import json
from pathlib import Path

import pytest

from cli.kit import assert_refused, shell
from lab.report.makers import runs
from quietbit._files import write_json


@pytest.fixture
def folder(tmp_path):
    for place, run in enumerate(runs()[:4]):
        write_json(tmp_path / "runs" / f"{place}.json", dict(run.record))
    return tmp_path / "runs"


def test_writes_one_page_about_all_runs(capsys, tmp_path, folder):
    out = tmp_path / "page.html"
    result = shell(capsys, "report", folder, "--out", out, "--title", "Mine & yours")
    assert (result.code, result.err) == (0, "")
    assert "Gaussian, 32 bits" in result.out
    assert "<title>Mine &amp; yours</title>" in out.read_text()
    facts = shell(
        capsys, "report", folder / "0.json", folder / "1.json", "--out", out, "--json"
    ).json
    assert len(facts.pop("summary")) == 1
    assert facts == {
        "runs": 2,
        "mechanisms": ["Gaussian, 32 bits"],
        "bytes": out.stat().st_size,
        "saved": str(out),
    }


def test_bad_input_writes_nothing(capsys, tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text(json.dumps({"format": "something"}))
    cases = {
        (): "RUNS",
        ("missing.json",): "Cannot read missing.json",
        ("empty",): "no runs in empty",
        ("other.json",): "not a run record",
        ("runs", "--out", "page.pdf"): "must be .html",
        ("runs", "--out", "no/page.html"): "Cannot write",
        ("runs", "runs"): "different",
        (str(Path("runs") / "0.json"), "missing"): "Cannot read missing",
    }
    before = sorted(tmp_path.rglob("*"))
    for words, mention in cases.items():
        assert_refused(shell(capsys, "report", *words), mention)
    assert sorted(tmp_path.rglob("*")) == before
