import pytest

import quietbit
from quietbit.cli.options import adjacency_of, bias_of, catalogue_name, find_design, norm_of, trust_of
from quietbit.errors import InvalidDesignFile
from unit.cli.kit import ONE_BIT


def test_words_become_the_library_s():
    assert adjacency_of("zero-out") is quietbit.Adjacency.ZERO_OUT
    assert norm_of("l1") is quietbit.Norm.L1
    assert trust_of("central") is quietbit.Trust.CENTRAL
    assert bias_of("exact") == "exact"
    assert bias_of("1e2") == 100.0


@pytest.mark.parametrize("maker", [adjacency_of, norm_of, trust_of])
def test_other_words_are_refused_with_the_choices(maker):
    with pytest.raises(quietbit.InvalidParameter, match=r"must be one of .*, got 'ZERO_OUT'"):
        maker("ZERO_OUT")


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
