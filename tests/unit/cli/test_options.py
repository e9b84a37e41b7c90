import pytest

import quietbit
from quietbit.cli.options import bias_of, catalogue_name, find_design
from quietbit.errors import InvalidDesignFile
from unit.cli.kit import ONE_BIT, assert_refused, shell


def test_words_become_the_library_s():
    assert bias_of("exact") == "exact"
    assert bias_of("1e2") == 100.0


@pytest.mark.parametrize("option", ["adjacency", "norm", "trust"])
def test_other_words_are_refused_with_the_choices(capsys, option):
    words = {"epsilon": 1, "delta": 1e-5, "adjacency": "zero-out", "mechanism": "imvu", option: "ZERO_OUT"}
    result = shell(capsys, "calibrate", *(part for name, value in words.items() for part in (f"--{name}", value)))
    assert_refused(result, f"--{option} must be", "got 'ZERO_OUT'")


def test_a_design_is_found_by_name_with_or_without_its_end():
    design = find_design(ONE_BIT)
    assert find_design(ONE_BIT + ".json").identity() == design.identity()
    assert catalogue_name(design) == ONE_BIT
    with pytest.raises(InvalidDesignFile, match="neither"):
        find_design(f"elsewhere/{ONE_BIT}")


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quietbit.solve(quietbit.DesignSpec(2, 1, 2.0)).save(tmp_path / ONE_BIT)
    assert find_design(ONE_BIT).spec.epsilon == 2.0
