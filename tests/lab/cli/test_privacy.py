import pytest

import quietbit
from cli.kit import EIGHT_LEVELS, ONE_BIT, assert_refused, shell


def test_the_issue_example(capsys):
    words = ("privacy", ONE_BIT, "--norm", "l2", "--beta", 1, "--adjacency", "zero-out")
    result = shell(capsys, *words, "--releases", 50, "--delta", 1e-5)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    for word in (
        "zero-out adjacency",
        "local trust",
        "one client",
        "delta = 1e-05",
        "Fisher information",
    ):
        assert word in text


def test_constants_are_the_library_s_and_ordered(capsys):
    words = (
        "privacy",
        EIGHT_LEVELS,
        "--norm",
        "l1",
        "--adjacency",
        "replace-one",
        "--releases",
        3,
        "--json",
    )
    facts = shell(capsys, *words).json
    assert (
        facts["zero_out_constant_upper"]
        <= facts["lipschitz_upper"]
        <= facts["paper_constant_upper"]
    )
    assert facts["kappa_upper"] <= facts["lipschitz_upper"] ** 2 * (
        1 + 1e-9
    )  # alpha L^2 / 2 at alpha = 2
    design = quietbit.solve(quietbit.DesignSpec(8, 2, 3.0))
    mechanism = quietbit.InterpolatedMVU(design, quietbit.Ball("l1", 1000))
    curve = mechanism.privacy(quietbit.Adjacency.REPLACE_ONE)
    assert facts["epsilon_upper"] == (curve * 3).epsilon(1e-5)
    assert facts["identity"] == design.identity()


def test_two_levels_on_l2_match_the_closed_form(capsys):
    facts = shell(capsys, "privacy", ONE_BIT, "--adjacency", "replace-one", "--json").json
    assert facts["fisher_supremum_upper"] == pytest.approx(
        1.0, rel=1e-5
    )  # M = epsilon^2 for one bit
    assert facts["distance"] == pytest.approx(1.0)


def test_pure_privacy_is_answered_at_delta_zero(capsys):
    words = ("privacy", ONE_BIT, "--norm", "l1", "--adjacency", "zero-out", "--delta", 0, "--json")
    facts = shell(capsys, *words).json
    assert facts["epsilon_upper"] == pytest.approx(facts["zero_out_constant_upper"] / 2)


def test_a_file_serves_as_well_as_a_name(capsys, tmp_path):
    path = quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).save(tmp_path / "d.json")
    words = ("--adjacency", "zero-out", "--json")
    assert (
        shell(capsys, "privacy", path, *words).json
        == shell(capsys, "privacy", ONE_BIT, *words).json
    )


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (("--delta", "nan"), "nan"),
        (("--releases", "0"), "releases"),
        (("--norm", "l3"), "l3"),
        (("--beta", "inf"), "inf"),
        (("--radius", "1"), "clip"),
        (("--samples", "0"), "samples"),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, mention):
    assert_refused(shell(capsys, "privacy", ONE_BIT, "--adjacency", "zero-out", *words), mention)


def test_a_missing_or_unknown_adjacency_is_refused(capsys):
    assert_refused(shell(capsys, "privacy", ONE_BIT), "adjacency")
    assert_refused(shell(capsys, "privacy", ONE_BIT, "--adjacency", "remove"), "remove")
    assert_refused(
        shell(capsys, "privacy", EIGHT_LEVELS, "--adjacency", "zero-out", "--order", "1"), "alpha"
    )


def test_what_is_neither_file_nor_name_is_refused(capsys):
    assert_refused(shell(capsys, "privacy", "nowhere", "--adjacency", "zero-out"), "nowhere")
    assert_refused(
        shell(capsys, "privacy", "nowhere.json", "--adjacency", "zero-out"), "nowhere.json"
    )
