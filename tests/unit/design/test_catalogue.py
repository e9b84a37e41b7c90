import pytest

from quietbit.design.catalogue import EPSILONS, catalogue, shipped, specs
from quietbit.design.certify import certify
from quietbit.design.spec import DesignSpec

ALL = list(specs())


def test_the_papers_epsilons_are_all_there():
    paper = {0.25, 0.5, 0.75, 1, 2, 3, 5} | {1, 2, 3, 5, 10, 20} | {6, 7, 8, 9, 10}
    assert set(EPSILONS) == paper
    assert len(ALL) == len(paper) * 4 * 2 * 2 == len(list(catalogue()))


@pytest.mark.parametrize("chunk", range(8))
def test_every_file_is_certified_again(chunk):
    for spec in ALL[chunk::8]:
        design = shipped(spec)
        assert design is not None
        measured = certify(design)
        assert measured.meets_spec
        assert spec.bias != "exact" or measured.bias_upper <= 1e-9


def test_what_is_not_shipped_is_none():
    assert shipped(DesignSpec(8, 3, 4.0)) is None
    assert shipped(DesignSpec(8, 3, 5.0, "strict")) is None
    assert shipped(DesignSpec(4, 3, 5.0)) is None
