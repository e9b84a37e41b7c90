import quietbit
from cli.kit import assert_refused, shell


def test_lists_and_filters(capsys):
    result = shell(capsys, "catalogue", "--levels", 2, "--bits", 1, "--epsilon", 1)
    assert result.code == 0
    assert "2 designs" in result.out
    assert "metric-l1_levels-2_bits-1_eps-1_exact" in result.out
    assert "metric-l1_levels-2_bits-1_eps-1_penalty-100" in result.out


def test_json_and_export(capsys, tmp_path):
    words = (
        "catalogue",
        "--levels",
        8,
        "--bits",
        2,
        "--bias",
        100,
        "--export",
        tmp_path / "new",
        "--json",
    )
    listed = shell(capsys, *words).json
    assert len(listed) == 13
    for entry in listed:
        design = quietbit.Design.load(tmp_path / "new" / f"{entry['name']}.json")
        assert design.identity() == entry["identity"]
        assert design.spec.bias == 100.0


def test_nothing_found_is_an_empty_list(capsys):
    assert shell(capsys, "catalogue", "--levels", 3, "--json").json == []


def test_an_unwritable_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_refused(
        shell(capsys, "catalogue", "--levels", 3, "--export", tmp_path / "file"), "Cannot write"
    )
