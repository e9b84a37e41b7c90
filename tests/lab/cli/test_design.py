import quietbit
from cli.kit import shell
from quietbit.design.profile import Profile
from quietbit.privacy.profile import certify_profile

BASE = "design --levels 2 --bits 1 --design-epsilon 1"
VECTOR = "design --vector --epsilon 8 --delta 1e-5 --releases 3 --adjacency zero-out"


def missing(text, labels):
    return [label for label in labels if label not in text]


def test_prints_what_was_measured(capsys):
    result = shell(capsys, BASE)
    assert (result.code, result.err) == (0, "")
    labels = ["epsilon measured", "largest bias", "mean squared error", "no alphabet beats", "gap"]
    labels.append(quietbit.solve(quietbit.DesignSpec(2, 1, 1.0)).identity())
    assert missing(result.out, labels) == []
    assert "lower_bound" not in shell(capsys, BASE, "--no-bound", "--json").json


def test_json_and_files(capsys, tmp_path):
    out, plot = tmp_path / "d.json", tmp_path / "d.svg"
    words = "design --levels 4 --bits 1 --design-epsilon 2 --bias 100 --json"
    facts = shell(capsys, words, "--out", out, "--plot", plot).json
    saved = quietbit.Design.load(out)
    assert saved.spec == quietbit.DesignSpec(4, 1, 2.0, "metric-l1", 100.0)
    assert facts["identity"] == saved.identity()
    assert facts["epsilon_upper"] == quietbit.certify(saved).epsilon_upper
    assert facts["lower_bound"] <= facts["objective"]
    assert facts["alphabet"] == saved.alphabet.tolist()
    assert plot.read_bytes().startswith(b"<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "d.svg"]


def test_a_profile_is_solved_certified_and_saved(capsys, tmp_path):
    out = tmp_path / "p.json"
    facts = shell(capsys, VECTOR, "--out", out, "--json").json
    saved = Profile.load(out)
    assert facts["identity"] == saved.identity()
    certificate = certify_profile(saved, quietbit.Adjacency.ZERO_OUT, 3, 1e-5)
    assert facts["epsilon_upper"] == certificate.epsilon_upper <= 8
    assert facts["squared_error_upper"] == certificate.squared_error_upper <= 1.02 * 0.367
    assert facts["least_squared_error"] <= facts["squared_error_upper"]
    assert facts["squared_error_upper"] < facts["gaussian_squared_error"]
    labels = ["epsilon measured", "epsilon at delta 0", "squared error", "Gaussian noise's"]
    assert missing(shell(capsys, VECTOR).out, [*labels, "no profile beats"]) == []


def test_a_pure_profile_has_no_gaussian_beside_it(capsys):
    words = "design --vector --epsilon 1 --delta 0 --adjacency replace-one"
    assert "it has no pure privacy" in shell(capsys, words).out
