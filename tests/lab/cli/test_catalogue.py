from cli.kit import shell
from quietbit.cli.options import find_design


def test_lists_and_filters(capsys):
    result = shell(capsys, "catalogue", "--levels", 2, "--bits", 1, "--epsilon", 1)
    assert result.code == 0
    assert "2 designs" in result.out
    assert "metric-l1_levels-2_bits-1_eps-1_exact" in result.out
    assert "metric-l1_levels-2_bits-1_eps-1_penalty-100" in result.out


def test_json(capsys):
    listed = shell(capsys, "catalogue", "--levels", 8, "--bits", 2, "--bias", 100, "--json").json
    assert len(listed) == 13
    for entry in listed:
        design = find_design(entry["name"])
        assert design.identity() == entry["identity"]
        assert design.spec.bias == 100.0


def test_nothing_found_is_an_empty_list(capsys):
    assert shell(capsys, "catalogue", "--levels", 3, "--json").json == []
