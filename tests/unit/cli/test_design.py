import pytest

import quietbit
from unit.cli.kit import assert_refused, shell

BASE = ("design", "--levels", "2", "--bits", "1", "--design-epsilon", "1")


def spec(levels=2, bits=1, epsilon=1, **more):
    words = ["design", "--levels", levels, "--bits", bits, "--design-epsilon", epsilon]
    for name, value in more.items():
        words += [f"--{name}", value]
    return words


def test_prints_what_was_measured(capsys):
    result = shell(capsys, *BASE)
    assert (result.code, result.err) == (0, "")
    for label in ("epsilon measured", "largest bias", "mean squared error", "no alphabet beats", "gap", "identity"):
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
        ({"bits": 0}, "--bits"),
        ({"bits": 20}, "20"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1}, "-1"),
        ({"epsilon": "nan"}, "nan"),
        ({"epsilon": "inf"}, "inf"),
        ({"privacy": "none"}, "none"),
        ({"bias": "some"}, "some"),
        ({"bias": "-3"}, "-3"),
        ({"levels": 4000, "epsilon": 1e-6, "privacy": "metric-l2"}, "feasible"),
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
    assert_refused(shell(capsys, *BASE, "--out", tmp_path / "d.json", "--plot", tmp_path / "no" / "d.png"))
    assert_refused(shell(capsys, *BASE, "--out", tmp_path / "d.json", "--plot", tmp_path / "d.bmp"), "bmp")
    assert_refused(shell(capsys, *BASE, "--out", tmp_path / "d.png", "--plot", tmp_path / "d.png"), "different")
    assert list(tmp_path.iterdir()) == []
