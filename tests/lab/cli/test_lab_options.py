from quietbit_lab.cli.options import check_folder, number_or_word


def test_words_become_the_library_s():
    assert number_or_word("exact") == "exact"
    assert number_or_word("1e2") == 100.0


def test_a_folder_is_made_and_left_empty(tmp_path):
    check_folder(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []
