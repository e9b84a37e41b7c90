import pytest

from quietbit.design.certify import certify
from quietbit.design.solve import EPSILONS, catalogue, closed_design, shipped, solve, specs
from quietbit.design.table import DesignSpec
from quietbit.errors import MissingDependency
from refusals import refuses


def test_what_is_not_a_spec_is_refused():
    with refuses("spec"):
        solve(5)


def test_a_formula_is_the_design_of_a_spec_that_is_not_shipped():
    spec = DesignSpec(2, 1, 0.3)
    assert shipped(spec) is None
    assert solve(spec) == closed_design(spec)


def test_a_design_that_must_be_searched_for_needs_the_laboratory(monkeypatch):
    spec = DesignSpec(5, 2, 1.5)
    monkeypatch.setattr("quietbit.design.solve.entry_points", lambda group: ())
    with pytest.raises(MissingDependency, match=r"pip install \./packages/lab"):
        solve(spec)


def test_an_installed_solver_is_asked(monkeypatch):
    spec = DesignSpec(5, 2, 1.5)
    made = closed_design(DesignSpec(2, 2, 1.5))

    class Entry:
        def load(self):
            return lambda asked: made if asked == spec else None

    monkeypatch.setattr("quietbit.design.solve.entry_points", lambda group: (Entry(),))
    assert solve(spec) == made
    with refuses("design"):
        solve(DesignSpec(5, 2, 1.75))


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
