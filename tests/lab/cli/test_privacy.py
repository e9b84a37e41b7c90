import pytest

import quietbit
from cli.kit import EIGHT_LEVELS, ONE_BIT, shell


def test_the_issue_example(capsys):
    words = f"privacy {ONE_BIT} --norm l2 --beta 1 --adjacency zero-out --releases 50 --delta 1e-5"
    result = shell(capsys, words)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in ("zero-out adjacency", "local trust", "one client", "delta = 1e-05", "Fisher"):
        assert word in text


def test_constants_are_the_library_s_and_ordered(capsys):
    words = f"privacy {EIGHT_LEVELS} --norm l1 --adjacency replace-one --releases 3 --json"
    facts = shell(capsys, words).json
    lipschitz = facts["lipschitz_upper"]
    assert facts["zero_out_constant_upper"] <= lipschitz <= facts["paper_constant_upper"]
    assert facts["kappa_upper"] <= lipschitz**2 * (1 + 1e-9)  # alpha L^2 / 2 at alpha = 2
    design = quietbit.solve(quietbit.DesignSpec(8, 2, 3.0))
    mechanism = quietbit.InterpolatedMVU(design, quietbit.Ball("l1", 1000))
    curve = mechanism.privacy(quietbit.Adjacency.REPLACE_ONE)
    assert facts["epsilon_upper"] == (curve * 3).epsilon(1e-5)
    assert facts["identity"] == design.identity()


def test_two_levels_on_l2_match_the_closed_form_by_name_or_by_file(capsys, tmp_path):
    path = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).save(tmp_path / "d.json")
    words = "--adjacency replace-one --json"
    facts = shell(capsys, f"privacy {ONE_BIT} {words}").json
    assert facts == shell(capsys, f"privacy {path} {words}").json
    assert facts["fisher_supremum_upper"] == pytest.approx(1.0, rel=1e-5)  # epsilon^2 for one bit
    assert facts["distance"] == pytest.approx(1.0)


def test_pure_privacy_is_answered_at_delta_zero(capsys):
    words = f"privacy {ONE_BIT} --norm l1 --adjacency zero-out --delta 0 --json"
    facts = shell(capsys, words).json
    assert facts["epsilon_upper"] == pytest.approx(facts["zero_out_constant_upper"] / 2)
