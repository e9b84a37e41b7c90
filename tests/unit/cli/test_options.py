from pathlib import Path

import pytest

import quietbit
from quietbit.cli.options import check_folder, check_outputs, find_design, number_or_word
from quietbit.errors import InvalidDesignFile, QuietbitError
from unit.cli.kit import ONE_BIT, assert_refused, shell


def test_words_become_the_library_s():
    assert number_or_word("exact") == "exact"
    assert number_or_word("1e2") == 100.0


@pytest.mark.parametrize("option", ["adjacency", "norm", "trust"])
def test_other_words_are_refused_with_the_choices(capsys, option):
    words = {"epsilon": 1, "delta": 1e-5, "adjacency": "zero-out", "mechanism": "imvu", option: "ZERO_OUT"}
    result = shell(capsys, "calibrate", *(part for name, value in words.items() for part in (f"--{name}", value)))
    assert_refused(result, f"--{option} must be", "got 'ZERO_OUT'")


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
    check_folder(tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


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


def test_a_folder_in_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(QuietbitError, match="Cannot write"):
        check_folder(Path(tmp_path / "file"))
