import json

import pytest

from cli.kit import assert_refused, shell
from lab.report.makers import changed, runs

SMALL = ("--levels", 2, "--levels", 8, "--bits", 2, "--design-epsilon", 3)
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def folder(tmp_path):
    lines = [
        {"sweep": "mine", "job": str(k), "label": r.label, "record": r.record}
        for k, r in enumerate(runs())
    ]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "results.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    return tmp_path / "runs"


def test_draws_the_figure(capsys, tmp_path):
    out = tmp_path / "f.png"
    result = shell(capsys, "figure", "bias-variance", "--out", out, *SMALL)
    assert (result.code, result.err) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG")
    facts = shell(capsys, "figure", "bias-variance", "--out", out, *SMALL, "--json").json
    assert len(facts["identities"]) == 2
    assert facts["saved"] == str(out)


@pytest.mark.parametrize(
    ("name", "form"), [("frontier", "png"), ("bytes", "svg"), ("training", "pdf"), ("mine", "svg")]
)
def test_draws_runs_in_every_format(capsys, tmp_path, folder, name, form):
    out = tmp_path / f"f.{form}"
    facts = shell(capsys, "figure", name, "--runs", folder, "--out", out, "--json").json
    assert out.read_bytes().startswith(STARTS[form])
    assert facts["saved"] == str(out)
    assert len(facts["I-MVU, 1 bit"]) >= 1
    assert facts["without noise"][0][0] is None  # infinite


def test_a_target_leaves_out_what_costs_more(capsys, tmp_path, folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = shell(capsys, "figure", "bytes", "--runs", folder, "--epsilon", 10)
    assert (result.code, (tmp_path / "bytes.png").exists()) == (0, True)
    assert "at 10" in result.out
    assert "at 20" not in result.out


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("accuracy", "--out", "f.png"), "accuracy"),
        (("frontier",), "--runs"),
        (("frontier", "--runs", "none"), "Cannot read none"),
        (("other", "--runs", "runs"), "name of a sweep"),
        (("bytes", "--runs", "runs", "--epsilon", "-1"), "--epsilon"),
        (("bytes", "--runs", "mixed"), "one task, unit, adjacency and delta"),
        (("bias-variance", "--runs", "runs"), "left out"),
        (("bias-variance", "--epsilon", "1"), "left out"),
        (("training", "--runs", "runs", "--out", "f.gif"), "gif"),
        (("bias-variance", "--out", "f.gif"), "gif"),
        (("bias-variance", "--out", "no/f.png"), "Cannot write"),
        (("bias-variance", "--out", "f.png", "--levels", "1"), "--levels"),
        (("bias-variance", "--out", "f.png", "--design-epsilon", "nan"), "nan"),
    ],
)
def test_bad_input_writes_nothing(capsys, tmp_path, folder, monkeypatch, words, mention):
    monkeypatch.chdir(tmp_path)
    other = [runs()[0], changed(runs()[1], task={"name": "mnist"})]
    lines = [
        {"sweep": "mine", "job": str(k), "label": r.label, "record": r.record}
        for k, r in enumerate(other)
    ]
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "results.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    before = sorted(tmp_path.rglob("*"))
    assert_refused(shell(capsys, "figure", *words), mention)
    assert sorted(tmp_path.rglob("*")) == before
