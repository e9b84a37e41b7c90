import pytest

import quietbit
from cli.kit import ONE_BIT, shell
from quietbit.cli.options import check_outputs, find_design, help_text
from quietbit.errors import InvalidDesignFile, QuietbitError


def test_a_design_is_found_by_name_with_or_without_its_end():
    design = find_design(ONE_BIT)
    assert find_design(ONE_BIT + ".json").identity() == design.identity()
    assert design.spec == quietbit.DesignSpec(2, 1, 1.0)
    with pytest.raises(InvalidDesignFile, match="neither"):
        find_design(f"elsewhere/{ONE_BIT}")


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quietbit.solve(quietbit.DesignSpec(2, 1, 2.0)).save(tmp_path / ONE_BIT)
    assert find_design(ONE_BIT).spec.epsilon == 2.0


def test_a_check_leaves_nothing_behind(tmp_path):
    check_outputs(tmp_path / "a.json", None, figures=(tmp_path / "a.PNG", None))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_until_it_is_replaced(tmp_path):
    (tmp_path / "a.json").write_text("kept")
    check_outputs(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "kept"


@pytest.mark.parametrize("path", ["no/a.json", "."])
def test_what_cannot_be_written_is_refused(tmp_path, path):
    with pytest.raises(QuietbitError, match="Cannot write"):
        check_outputs(tmp_path / path)
    with pytest.raises(QuietbitError, match="different"):
        check_outputs(tmp_path / "x", tmp_path / "." / "x")


def test_help_is_folded_where_the_terminal_ends_and_says_every_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    init = shell(capsys, "node", "init", "--help").out
    assert "_ABSOLUTE" not in init
    lines = [line.strip() for line in init.split("Arguments")[0].splitlines()]
    place = next(k for k, line in enumerate(lines) if line.startswith("A run can never"))
    assert all(
        len(line) > 60 for line in lines[place : place + 3]
    )  # a paragraph, not a line of the source


def test_brackets_are_words_and_not_styles():
    def command():
        """Read a table [choose].

        Over two
        lines.
        """

    assert help_text(command) == "Read a table \\[choose].\n\nOver two lines."
    assert help_text(None) == ""


def test_an_epsilon_that_protects_nobody_is_said(capsys):
    asked = "calibrate --mechanism gaussian --delta 1e-5 --adjacency zero-out --epsilon"
    assert "protects nobody" in shell(capsys, f"{asked} 1e300").out
    assert "protects nobody" not in shell(capsys, f"{asked} 8").out
