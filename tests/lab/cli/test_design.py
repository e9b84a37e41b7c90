import pytest

import quietbit
from cli.kit import assert_refused, shell
from quietbit.design.profile import Profile
from quietbit.privacy.profile import certify_profile

BASE = ("design", "--levels", "2", "--bits", "1", "--design-epsilon", "1")


def spec(levels=2, bits=1, epsilon=1, **more):
    words = ["design", "--levels", levels, "--bits", bits, "--design-epsilon", epsilon]
    for name, value in more.items():
        words += [f"--{name}", value]
    return words


def test_prints_what_was_measured(capsys):
    result = shell(capsys, *BASE)
    assert (result.code, result.err) == (0, "")
    for label in (
        "epsilon measured",
        "largest bias",
        "mean squared error",
        "no alphabet beats",
        "gap",
        "identity",
    ):
        assert label in result.out
    assert quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).identity() in result.out


def test_json_and_files(capsys, tmp_path):
    out, plot = tmp_path / "d.json", tmp_path / "d.svg"
    result = shell(capsys, *spec(4, 1, 2, bias=100, out=out, plot=plot), "--json")
    assert result.code == 0
    saved = quietbit.Design.load(out)
    assert saved.spec == quietbit.DesignSpec(4, 1, 2.0, "metric-l1", 100.0)
    assert result.json["identity"] == saved.identity()
    assert result.json["epsilon_upper"] == quietbit.certify(saved).epsilon_upper
    assert result.json["lower_bound"] <= result.json["objective"]
    assert result.json["alphabet"] == saved.alphabet.tolist()
    assert plot.read_bytes().startswith(b"<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "d.svg"]


def test_the_bound_can_be_skipped(capsys):
    assert "lower_bound" not in shell(capsys, *BASE, "--no-bound", "--json").json


@pytest.mark.parametrize(
    ("given", "mention"),
    [
        ({"levels": 1}, "--levels"),
        ({"bits": 20}, "20"),
        ({"epsilon": "nan"}, "nan"),
        ({"privacy": "none"}, "none"),
        ({"bias": "-3"}, "-3"),
        ({"levels": 4000, "epsilon": 1e-6, "privacy": "metric-l2"}, "levels"),
    ],
)
def test_bad_specs_are_refused_and_nothing_is_written(capsys, tmp_path, given, mention):
    out, plot = tmp_path / "d.json", tmp_path / "d.png"
    assert_refused(shell(capsys, *spec(**given), "--out", out, "--plot", plot), mention)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/d.json", ".", "file/d.json"])
def test_an_unwritable_output_writes_nothing(capsys, tmp_path, place):
    (tmp_path / "file").write_text("x")
    plot = tmp_path / "d.png"
    assert_refused(shell(capsys, *BASE, "--out", tmp_path / place, "--plot", plot), "Cannot write")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_plot_leaves_no_design(capsys, tmp_path):
    assert_refused(
        shell(capsys, *BASE, "--out", tmp_path / "d.json", "--plot", tmp_path / "no" / "d.png")
    )
    assert_refused(
        shell(capsys, *BASE, "--out", tmp_path / "d.json", "--plot", tmp_path / "d.bmp"), "bmp"
    )
    assert_refused(
        shell(capsys, *BASE, "--out", tmp_path / "d.png", "--plot", tmp_path / "d.png"), "different"
    )
    assert list(tmp_path.iterdir()) == []


VECTOR = (
    "design",
    "--vector",
    "--epsilon",
    "8",
    "--delta",
    "1e-5",
    "--releases",
    "3",
    "--adjacency",
    "zero-out",
)


def test_a_profile_is_solved_certified_and_saved(capsys, tmp_path):
    out = tmp_path / "p.json"
    result = shell(capsys, *VECTOR, "--out", out, "--json")
    assert result.code == 0
    saved = Profile.load(out)
    assert result.json["identity"] == saved.identity()
    certificate = certify_profile(saved, quietbit.Adjacency.ZERO_OUT, 3, 1e-5)
    assert result.json["epsilon_upper"] == certificate.epsilon_upper <= 8
    assert result.json["squared_error_upper"] == certificate.squared_error_upper <= 1.02 * 0.367
    assert result.json["least_squared_error"] <= result.json["squared_error_upper"]
    assert result.json["squared_error_upper"] < result.json["gaussian_squared_error"]
    shown = shell(capsys, *VECTOR).out
    for label in (
        "epsilon measured",
        "epsilon at delta 0",
        "squared error",
        "Gaussian noise's",
        "no profile beats",
    ):
        assert label in shown


def test_a_pure_profile_has_no_gaussian_beside_it(capsys):
    words = ("design", "--vector", "--epsilon", "1", "--delta", "0", "--adjacency", "replace-one")
    assert "it has no pure privacy" in shell(capsys, *words).out


@pytest.mark.parametrize(
    ("words", "mention"),
    [
        (
            ("design", "--vector", "--epsilon", "1", "--adjacency", "zero-out"),
            "delta must be given",
        ),
        ((*VECTOR, "--bits", "1"), "bits must be left out"),
        ((*BASE, "--epsilon", "1"), "epsilon must be left out"),
        (("design", "--bits", "1"), "--vector"),
        (("design", "--vector", "--epsilon", "1", "--delta", "0", "--adjacency", "some"), "some"),
    ],
)
def test_a_target_is_complete_or_refused(capsys, words, mention):
    assert_refused(shell(capsys, *words), mention)
