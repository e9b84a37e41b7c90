import pytest

from cli.kit import shell
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
