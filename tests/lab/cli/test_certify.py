import pytest

import quietbit
from cli.kit import shell


def test_a_good_file(capsys, tmp_path):
    saved = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).save(tmp_path / "d.json")
    result = shell(capsys, "certify", saved)
    assert (result.code, result.err) == (0, "")
    assert "yes" in result.out
    assert shell(capsys, "certify", saved, "--json", "--no-bound").json["meets_spec"] is True


def test_a_design_that_reveals_more_than_its_spec_exits_1(capsys, tmp_path):
    honest = quietbit.solve(quietbit.DesignSpec(2, 1, 2.0))
    boast = quietbit.Design(quietbit.DesignSpec(2, 1, 1.0), honest.probabilities, honest.alphabet)
    result = shell(capsys, "certify", boast.save(tmp_path / "boast.json"), "--json")
    assert result.code == 1
    assert result.json["meets_spec"] is False
    assert result.json["epsilon_upper"] == pytest.approx(2.0)
