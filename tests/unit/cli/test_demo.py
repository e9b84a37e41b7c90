import quietbit
from unit.cli.kit import assert_refused, shell


def test_leaves_certified_designs_and_pictures(capsys, tmp_path):
    result = shell(capsys, "demo", "--out", tmp_path / "out")
    assert result.code == 0
    assert "replace-one adjacency" in result.out
    designs = sorted((tmp_path / "out").glob("*.json"))
    assert len(designs) == 3
    for path in designs:
        assert quietbit.certify(quietbit.Design.load(path)).meets_spec
        assert str(path) in result.out
        assert path.with_suffix(".png").exists()
    assert (tmp_path / "out" / "bias-variance.png").exists()
    assert "Designs: " in result.err  # progress, as lines where stderr is no terminal
    facts = shell(capsys, "demo", "--out", tmp_path / "out", "--json")
    assert facts.err == ""
    assert len(facts.json["saved"]) == 8
    assert facts.json["calibrated"]["epsilon_upper"] <= 3
    assert facts.json["calibrated"]["payload_bytes"] == 100_000 // 8 + 64  # one bit each, and a header
    gaussian, sign, one_bit = facts.json["training"]
    for run in (gaussian, sign, one_bit):
        assert 0.99 * 20 < run["epsilon_upper"] <= 20
        assert "zero-out adjacency" in run["guarantee"]
        assert run["accuracy"] > 0.25  # ten classes: far from chance whatever the words
    assert one_bit["bytes_per_client_and_round"] == sign["bytes_per_client_and_round"] == -(-650 // 8) + 64
    assert gaussian["bytes_per_client_and_round"] == 4 * 650 + 64


def test_an_unwritable_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_refused(shell(capsys, "demo", "--out", tmp_path / "file" / "out"), "Cannot write")
