from pathlib import Path

import pytest

from quietbit import QuietbitError
from quietbit.cli.files import check_folder, check_outputs


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
