import pytest

from unit.cli.kit import assert_refused, shell

SMALL = ("--levels", 2, "--levels", 8, "--bits", 2, "--epsilon", 3)


def test_draws_the_figure(capsys, tmp_path):
    out = tmp_path / "f.png"
    result = shell(capsys, "figure", "bias-variance", "--out", out, *SMALL)
    assert (result.code, result.err) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG")
    facts = shell(capsys, "figure", "bias-variance", "--out", out, *SMALL, "--json").json
    assert len(facts["identities"]) == 2
    assert facts["saved"] == str(out)


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("accuracy", "--out", "f.png"), "accuracy"),
        (("bias-variance",), "out"),
        (("bias-variance", "--out", "f.gif"), "gif"),
        (("bias-variance", "--out", "no/f.png"), "Cannot write"),
        (("bias-variance", "--out", "f.png", "--levels", "1"), "input_levels"),
        (("bias-variance", "--out", "f.png", "--epsilon", "nan"), "nan"),
    ],
)
def test_bad_input_writes_nothing(capsys, tmp_path, monkeypatch, words, mention):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, "figure", *words), mention)
    assert list(tmp_path.iterdir()) == []
